"""A signal while a run starts: it ends as a run that was stopped, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests import runs, slow_start_env

pytestmark = pytest.mark.timeout(300)

FLAGS = (
    *("--env", slow_start_env.ID, "--num-envs", 4, "--n-steps", 8, "--total-timesteps", 1e7),
    *("--set", "logging.tensorboard=false"),
)
SCRIPTS = {
    "ppo": ("train_ppo_parallel.py", "--num-workers", 2, "--batch-size", 16, "--n-epochs", 1),
    "a3c": ("train.py --algorithm a3c --mode parallel", "--num-workers", 2),
    "impala": ("train_impala_parallel.py", "--num-actors", 2, "--set", "impala.num_learners=1"),
}


def surroundings(folder: Path) -> dict[str, str]:
    """The environment of a run whose processes are found by its folder."""
    return {**os.environ, "RUN": str(folder)}


def require_stopped(folder: Path, errors: str) -> None:
    """Nobody failed; the run either took no folder or says there that it was interrupted."""
    assert "Traceback" not in errors
    assert "failed" not in errors
    runs.wait_until(lambda: runs.processes_of(folder) == [], what="processes were not gone")
    if folder.exists():
        record = runs.record(folder)
        assert (record["status"], record["total_updates"]) == ("interrupted", 0)


@pytest.mark.parametrize(
    ("algorithm", "number"),
    [
        ("ppo", signal.SIGINT),
        ("ppo", signal.SIGTERM),
        ("a3c", signal.SIGTERM),
        ("impala", signal.SIGINT),
    ],
)
def test_a_signal_before_the_workers_are_ready_ends_the_run_with_its_own_code(
    tmp_path: Path, algorithm: str, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    process = runs.start(*SCRIPTS[algorithm], *FLAGS, "--output-dir", folder, env=surroundings(folder))
    # The workers are children of the process that they are forks of.
    runs.wait_until(
        lambda: any(each.children() for each in psutil.Process(process.pid).children()), what="no worker"
    )
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    require_stopped(folder, errors)


@pytest.mark.parametrize(("algorithm", "delay"), [("ppo", 0.3), ("ppo", 1.5), ("impala", 1.5)])
def test_a_signal_at_any_moment_of_starting_leaves_no_process(
    tmp_path: Path, algorithm: str, delay: float
) -> None:
    folder = tmp_path / "run"
    process = runs.start(*SCRIPTS[algorithm], *FLAGS, "--output-dir", folder, env=surroundings(folder))
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors
    if process.returncode == 130:  # else Python itself was still starting
        require_stopped(folder, errors)
