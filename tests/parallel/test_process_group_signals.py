"""Signals to all processes of a run: SIGTERM of `timeout` and `docker stop`, SIGHUP of a closed terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def hangup(action: signal.Handlers) -> Iterator[None]:
    """Start processes inside with this action for SIGHUP, whatever it is for pytest."""
    before = signal.signal(signal.SIGHUP, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("algorithm", "number"), [*((each, signal.SIGTERM) for each in SCRIPTS), ("ppo", signal.SIGHUP)]
)
def test_a_signal_to_the_whole_process_group_interrupts_the_run_and_it_resumes(
    tmp_path: Path, algorithm: str, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    script, *flags = SCRIPTS[algorithm]
    flags += [*FLAGS, "--output-dir", folder]
    with hangup(signal.SIG_DFL):
        process = runs.start(script, *flags, "--total-timesteps", 1e7, start_new_session=True)
    runs.wait_for_rows(folder, 2)
    for _ in range(2 if number == signal.SIGHUP else 1):  # a shell and the kernel both send SIGHUP
        os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    record = runs.record(folder)
    assert record["status"] == "interrupted"
    assert runs.processes_of(folder) == []

    more = record["total_timesteps"] + 320
    result = runs.call(script, "--resume", "--total-timesteps", more, "--output-dir", folder)
    assert result.returncode == 0, result.stderr
    assert runs.record(folder)["status"] == "completed"
    assert runs.record(folder)["total_timesteps"] >= more


@pytest.mark.timeout(180)
def test_a_run_that_was_started_to_ignore_sighup_completes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    script, *flags = SCRIPTS["ppo"]
    flags += [*FLAGS, "--output-dir", folder]
    with hangup(signal.SIG_IGN):  # as `nohup` does
        process = runs.start(script, *flags, "--total-timesteps", 2560, start_new_session=True)
    runs.wait_for_rows(folder, 2)
    os.killpg(process.pid, signal.SIGHUP)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert runs.record(folder)["status"] == "completed"
