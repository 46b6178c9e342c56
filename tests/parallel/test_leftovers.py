"""Runs leave nothing in TMPDIR and /dev/shm, however they end, and work with a long TMPDIR."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fault_env, runs

pytestmark = pytest.mark.timeout(120)

SMALL = (
    *("--env", "CartPole-v1", "--num-envs", 4, "--n-steps", 8, "--num-threads", 1),
    *("--set", "model.mlp_sizes=[8]", "--set", "logging.tensorboard=false"),
)
ONE_NODE = ("--num-nodes", 1, "--node-rank", 0, "--num-actors", 1, "--set", "impala.num_learners=1")


@pytest.fixture
def place() -> Iterator[Path]:
    """A TMPDIR with a short path, where sockets may be."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


def surroundings(folder: Path) -> dict[str, str]:
    """An environment with `folder` as TMPDIR."""
    return {**os.environ, "TMPDIR": str(folder)}


def sockets(place: Path) -> list[str]:
    """The folders of sockets in TMPDIR, where PyTorch leaves a cache of its own."""
    return [path.name for path in place.iterdir() if not path.name.startswith("torchinductor")]


def test_a_long_tmpdir_breaks_no_parallel_run_and_stays_empty(tmp_path: Path) -> None:
    place = tmp_path / ("a-folder-of-a-job-on-a-cluster-" * 4)
    place.mkdir()
    flags = (*SMALL, "--num-workers", 2, "--batch-size", 32, "--total-timesteps", 64)
    done = runs.run(
        "train_ppo_parallel.py", *flags, "--output-dir", tmp_path / "run", env=surroundings(place)
    )
    assert done.returncode == 0, done.stderr
    assert sockets(place) == []


def test_a_distributed_run_of_impala_leaves_no_folder_of_sockets(tmp_path: Path, place: Path) -> None:
    flags = ("--algorithm", "impala", "--mode", "distributed", *SMALL, *ONE_NODE, "--total-timesteps", 64)
    done = runs.run("train.py", *flags, "--output-dir", tmp_path / "run", env=surroundings(place))
    assert done.returncode == 0, done.stderr
    assert sockets(place) == []


def started(folder: Path, place: Path, algorithm: str, *more: object) -> subprocess.Popen[str]:
    """A run without an end that has written two rows, in a process group of its own."""
    flags = ("--algorithm", algorithm, "--mode", "parallel", *SMALL, "--num-workers", 2, *more)
    process = runs.start(
        *("train.py", *flags, "--total-timesteps", 1e9, "--output-dir", folder),
        env=surroundings(place), start_new_session=True,
    )  # fmt: skip
    runs.wait_for_rows(folder, 2)
    return process


def test_a_second_ctrl_c_leaves_no_folder_of_sockets(tmp_path: Path, place: Path) -> None:
    """The first one waits for a worker that hangs; the second one ends the run at once."""
    hang = ("--set", "env.kwargs.fault=hang", "--set", "env.kwargs.process=worker-1")
    process = started(tmp_path / "run", place, "a2c", "--env", fault_env.ID, *hang)
    assert len(sockets(place)) == 1
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(1)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert sockets(place) == []


def test_a_killed_group_leaves_no_semaphore_in_shared_memory(tmp_path: Path, place: Path) -> None:
    """A3C's lock has no name."""
    process = started(tmp_path / "run", place, "a3c")
    workers = [child.pid for child in runs.worker_origin(process.pid).children()]
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in (process.pid, *workers))
    assert len(workers) == 2
    assert "sem.mp-" not in maps
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
