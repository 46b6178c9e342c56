"""A SIGTERM to all processes of a run at once, as `timeout` and `docker stop` send it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests import runs

FLAGS = (
    *("--env", "CartPole-v1", "--num-envs", 4, "--n-steps", 8, "--num-threads", 1),
    *("--set", "model.mlp_sizes=[8]", "--set", "logging.tensorboard=false"),
)
SCRIPTS = {
    "ppo": ("train_ppo_parallel.py", "--num-workers", 2, "--batch-size", 16),
    "a3c": ("train.py --algorithm a3c --mode parallel", "--num-workers", 2),
    "impala": ("train_impala_parallel.py", "--num-actors", 2, "--set", "impala.num_learners=1"),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("algorithm", SCRIPTS)
def test_sigterm_to_the_whole_process_group_interrupts_the_run_and_it_resumes(
    tmp_path: Path, algorithm: str
) -> None:
    folder = tmp_path / "run"
    script, *flags = SCRIPTS[algorithm]
    process = runs.start(
        script, *flags, *FLAGS, "--total-timesteps", 1e7, "--output-dir", folder, start_new_session=True
    )
    runs.wait_for_rows(folder, 2)
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors
    record = runs.record(folder)
    assert record["status"] == "interrupted"
    assert runs.processes_of(folder) == []

    more = record["total_timesteps"] + 320
    result = runs.run(script, "--resume", "--total-timesteps", more, "--output-dir", folder)
    assert result.returncode == 0, result.stderr
    assert runs.record(folder)["status"] == "completed"
    assert runs.record(folder)["total_timesteps"] >= more
