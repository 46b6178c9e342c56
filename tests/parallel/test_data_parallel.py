"""Data-parallel runs compute what sequential ones do, and end as a whole when a part of them fails."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlcb.cli.train import main
from tests import fault_env, runs

SMALL = (
    *("--env", "CartPole-v1", "--num-envs", 6, "--n-steps", 7, "--gamma", 0.99, "--learning-rate", 1e-3),
    *("--n-epochs", 2, "--set", "logging.tensorboard=false"),
)
FAULT = (
    *("--env", fault_env.ID, "--num-envs", 4, "--n-steps", 8, "--batch-size", 16, "--n-epochs", 1),
    *("--set", "logging.tensorboard=false", "--set", "logging.snapshot_seconds=0", "--num-workers", 2),
)


def fault(**kwargs: object) -> tuple[str, ...]:
    return tuple(
        part for key, value in kwargs.items() for part in ("--set", f"env.kwargs.{key}={json.dumps(value)}")
    )


def series(folder: Path) -> list[tuple[float, ...]]:
    keys = (
        "rollout/ep_reward_mean",
        "rollout/reward_per_step",
        "train/policy_loss",
        "train/value_loss",
        "train/entropy",
        "train/grad_norm",
    )
    return [tuple(row[key] for key in keys) for row in runs.rows(folder)]


TIMESTEPS = 42 * 6
Trained = Callable[[int, int], tuple[Path, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train SMALL with a batch size and a number of workers, once for all tests.

    Returns the folder and what the run printed.
    """

    @functools.cache
    def train(batch_size: int, workers: int) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("trained") / "run"
        budget = ("--total-timesteps", TIMESTEPS, "--batch-size", batch_size, "--num-workers", workers)
        result = runs.call("train_ppo_parallel.py", *SMALL, *budget, "--output-dir", folder)
        assert result.returncode == 0, result.stderr
        return folder, result.stdout

    return train


@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch_size", [25, 41], ids=["not divisible", "one sample left"])
def test_workers_compute_what_one_process_computes(tmp_path: Path, trained: Trained, batch_size: int) -> None:
    budget = ("--total-timesteps", TIMESTEPS, "--batch-size", batch_size)
    flags = [*map(str, (*SMALL, *budget)), "--num-threads", "1", "--output-dir", str(tmp_path / "1")]
    assert main("ppo", "sequential", False, flags) == 0
    for workers in (2, 3):
        folder, _ = trained(batch_size, workers)
        assert runs.record(folder)["total_timesteps"] == TIMESTEPS
        for expected, actual in zip(series(tmp_path / "1"), series(folder), strict=True):
            assert actual == pytest.approx(expected, abs=1e-5)
        torch.testing.assert_close(
            runs.parameters(folder), runs.parameters(tmp_path / "1"), atol=1e-5, rtol=0
        )


@pytest.mark.timeout(300)
def test_procgen_streams_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    flags = (
        *("--num-envs", 8, "--n-steps", 32, "--batch-size", 64, "--n-epochs", 1, "--total-timesteps", 512),
        *("--set", "model.architecture=nature", "--set", "model.hidden_size=16"),
        *("--env", "bigfish", "--set", "logging.tensorboard=false"),
    )
    for script, folder, extra in (
        ("train_ppo_sequential.py", "1", ()),
        ("train_ppo_parallel.py", "4", ("--num-workers", 4)),
    ):
        result = runs.call(script, *flags, *extra, "--output-dir", tmp_path / folder)
        assert result.returncode == 0, result.stderr
    one, four = runs.checkpoint(tmp_path / "1")["collector"], runs.checkpoint(tmp_path / "4")["collector"]
    assert torch.equal(one["observations"], four["observations"])
    assert one["running_rewards"] == four["running_rewards"]
    torch.testing.assert_close(
        runs.parameters(tmp_path / "4"), runs.parameters(tmp_path / "1"), atol=1e-6, rtol=0
    )


@pytest.mark.timeout(300)
def test_a_parallel_run_says_its_workers_and_their_threads(trained: Trained) -> None:
    folder, output = trained(25, 3)
    for rank in range(3):
        assert f"Worker {rank} started with 2 environments" in output
    assert "Total environments: 6" in output
    record = runs.record(folder)
    assert record["hardware"]["threads"] == [1, 1, 1]
    assert len(record["workers"]) == 3
    assert sum(part["share"] for part in record["time_breakdown"].values()) == pytest.approx(1, abs=0.01)


@pytest.mark.timeout(300)
def test_more_workers_than_cores_are_allowed_with_a_warning(tmp_path: Path) -> None:
    workers = (
        2 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2 * (os.cpu_count() or 1)
    )
    result = runs.call(
        "train_ppo_parallel.py", "--env", "CartPole-v1", "--num-workers", workers, "--num-envs-per-worker", 1,
        "--n-steps", 4, "--batch-size", workers, "--total-timesteps", 1, "--output-dir", tmp_path / "run",
    )  # fmt: skip
    assert result.returncode == 0
    assert f"{workers} workers of 1 thread share" in result.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", ["train_ppo_parallel.py", "train.py --algorithm a3c --mode parallel"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raise", "worker 1: environment 2 raised at step"),
        ("nan", "worker 1: environment 2 returned reward nan at step"),
        ("exit", "worker 1 ended with exit code 7"),
        ("kill", "worker 1 was killed by SIGKILL"),
        pytest.param("hang", "worker 1: made no progress for 6 s", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_fails_ends_the_run_with_its_own_error(
    tmp_path: Path, script: str, kind: str, message: str
) -> None:
    before = runs.shared_files()
    folder = tmp_path / "run"
    flags = FAULT if "ppo" in script else (*FAULT[:6], *FAULT[10:])
    # While one worker hangs, A3C's other worker trains on: slowly.
    timeout, delay = (6, 0.01) if kind == "hang" else (60, 0.0)
    result = runs.call(
        script, *flags, *fault(fault=kind, process="worker-1", at=20, delay=delay),
        "--total-timesteps", 1e6, "--set", f"parallel.timeout_seconds={timeout}", "--output-dir", folder,
    )  # fmt: skip
    assert result.returncode == 1
    assert message in result.stderr.splitlines()[-1]
    record = runs.record(folder)
    assert record["status"] == "failed"
    if kind != "hang":  # then the first worker waits for the other, and is killed before it can say more
        assert [worker["threads"] for worker in record["workers"]] == [1, 1]
        assert None not in (record["start_time"], record["time_breakdown"], record["average_fps"])
        if "ppo" in script:  # in A3C the first worker may not have come to the end of an episode
            assert record["performance"]["initial_reward"] is not None
    assert runs.processes_of(folder) == []
    assert runs.left_in_shared_memory(before) == set()


@pytest.mark.timeout(300)
def test_a_worker_that_cannot_make_its_environment_is_a_usage_error_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    result = runs.call(
        "train_ppo_parallel.py", *FAULT, *fault(fault="make", process="worker-1"),
        "--total-timesteps", 100, "--output-dir", tmp_path / "run",
    )  # fmt: skip
    assert result.returncode == 2
    assert "no such world" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("script", "workers", "number"),
    [
        ("train_ppo_parallel.py", 1, signal.SIGINT),
        ("train_ppo_parallel.py", 2, signal.SIGTERM),
        ("train.py --algorithm a3c --mode parallel", 1, signal.SIGINT),
        ("train.py --algorithm a3c --mode parallel", 5, signal.SIGTERM),
    ],
)
def test_a_signal_ends_the_run_safely_and_the_same_command_resumes_it(
    tmp_path: Path, script: str, workers: int, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    flags = FAULT[:-1] if "ppo" in script else (*FAULT[:6], *FAULT[10:-1])
    flags = (*flags, workers, "--num-envs", 2 * workers, *fault(delay=0.002), "--output-dir", folder)
    process = runs.start(script, *flags, "--total-timesteps", 1e7)
    runs.wait_for_rows(folder, 3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number, errors
    record = runs.record(folder)
    assert record["status"] == "interrupted"
    assert record["total_timesteps"] == runs.rows(folder)[-1]["timesteps"]
    assert runs.processes_of(folder) == []

    more = record["total_timesteps"] + 400
    result = runs.call(script, "--resume", "--total-timesteps", more, "--output-dir", folder)
    assert result.returncode == 0, result.stderr
    steps = [row["timesteps"] for row in runs.rows(folder)]
    assert steps == sorted(set(steps))
    assert runs.record(folder)["status"] == "completed"
    assert more <= runs.record(folder)["total_timesteps"] < more + 16 * workers


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["watcher", "origin"])
def test_workers_end_when_a_process_that_they_come_from_is_killed(tmp_path: Path, victim: str) -> None:
    folder = tmp_path / "run"
    process = runs.start(
        "train_ppo_parallel.py", *FAULT, *fault(delay=0.002), "--total-timesteps", 1e7,
        "--output-dir", folder, env={**os.environ, "RUN": str(folder)},
    )  # fmt: skip
    runs.wait_for_rows(folder, 1)
    assert len(runs.processes_of(folder)) >= 3
    if victim == "watcher":
        process.kill()
        process.wait()
    else:
        runs.worker_origin(process.pid).kill()
        assert process.wait(timeout=60) == 1
        assert runs.record(folder)["status"] == "failed"
    deadline = time.monotonic() + 20
    while runs.processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert runs.processes_of(folder) == []


@pytest.mark.timeout(300)
def test_descriptors_and_threads_stay_constant_over_updates(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = runs.start(
        "train_ppo_parallel.py", *FAULT, *fault(delay=0.0005), "--total-timesteps", 1e7,
        "--output-dir", folder, env={**os.environ, "RUN": str(folder)},
    )  # fmt: skip

    def census() -> list[tuple[int, int]]:
        """Of each process at a moment when none has a file open for a short while."""
        samples = []
        for _ in range(10):
            samples.append(sorted((each.num_fds(), each.num_threads()) for each in runs.processes_of(folder)))
            time.sleep(0.05)
        return min(samples)

    def private_bytes() -> int:
        """What is the run's alone: its part of what is shared changes when other programs end."""
        return sum(each.memory_full_info().uss for each in runs.processes_of(folder))

    runs.wait_for_rows(folder, 20)
    before = census()
    private_before = private_bytes()
    runs.wait_for_rows(folder, 120, timeout=120)
    after = census()
    private_after = private_bytes()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert len(before) >= 3
    assert after == before
    assert private_after - private_before < 60 * 2**20


@pytest.mark.timeout(240)
def test_sixteen_workers_fit_under_256_descriptors(tmp_path: Path) -> None:
    words = runs.command(
        "train_ppo_parallel.py", "--env", "CartPole-v1", "--num-workers", 16, "--num-envs-per-worker", 1,
        "--n-steps", 4, "--batch-size", 64, "--total-timesteps", 64, "--output-dir", tmp_path / "run",
    )  # fmt: skip
    result = subprocess.run(
        ["bash", "-c", 'ulimit -n 256; exec "$@"', "bash", *words],
        cwd=runs.PROJECT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert len(runs.record(tmp_path / "run")["workers"]) == 16


@pytest.mark.timeout(300)
def test_a_rollout_on_disk_gives_the_same_run(tmp_path: Path, trained: Trained) -> None:
    in_memory, _ = trained(25, 2)
    result = runs.call(
        "train_ppo_parallel.py", *SMALL, "--total-timesteps", TIMESTEPS, "--batch-size", 25,
        "--num-workers", 2, "--set", "parallel.buffer=mmap", "--set", f"parallel.buffer_dir={tmp_path}",
        "--output-dir", tmp_path / "disk",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert torch.equal(runs.parameters(in_memory), runs.parameters(tmp_path / "disk"))


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="RLIMIT_DATA bounds private memory on Linux only"
)
@pytest.mark.timeout(300)
def test_a_rollout_larger_than_the_memory_limit_works_from_disk_only(tmp_path: Path) -> None:
    """48 steps of 512 environments of 4,096 numbers are 403 MB; a process may have 450 MB of its own."""
    flags = (
        *("--env", "tests.wide_env:Wide-v0", "--num-envs", 512, "--n-steps", 48, "--batch-size", 8192),
        *("--n-epochs", 1, "--total-timesteps", 1, "--set", "logging.tensorboard=false"),
        *("--set", "hardware.tune_allocator=false", "--set", "hardware.microbatch_size=512"),
    )

    def limited(*extra: object) -> subprocess.CompletedProcess[str]:
        words = runs.command("train_ppo_sequential.py", *flags, *extra)
        return subprocess.run(
            ["bash", "-c", 'ulimit -d 450000; exec "$@"', "bash", *words],
            cwd=runs.PROJECT, capture_output=True, text=True, timeout=100, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    in_memory = limited("--output-dir", tmp_path / "memory")
    assert in_memory.returncode == 1
    assert "memory" in in_memory.stderr.lower()
    on_disk = limited(
        "--set",
        "parallel.buffer=mmap",
        "--set",
        f"parallel.buffer_dir={tmp_path}",
        "--output-dir",
        tmp_path / "disk",
    )
    assert on_disk.returncode == 0, on_disk.stderr
    assert runs.record(tmp_path / "disk")["total_timesteps"] == 48 * 512


def test_workers_share_what_one_of_them_would_hold_alone(tmp_path: Path) -> None:
    sizes = (
        *("--env", "coinrun", "--num-envs", 6, "--n-steps", 8, "--batch-size", 48, "--n-epochs", 1),
        *("--set", "model.architecture=nature", "--set", "model.hidden_size=8"),
    )
    budget = ("--total-timesteps", 192, "--set", "logging.memory_interval_seconds=0.1")
    peaks = []
    for script, *workers in (["train_ppo_sequential.py"], ["train_ppo_parallel.py", "--num-workers", 3]):
        folder = tmp_path / script
        result = runs.run(script, *sizes, *budget, *workers, "--output-dir", folder)
        assert result.returncode == 0, result.stderr
        peaks.append(runs.record(folder)["resource_usage"]["peak_memory_gb"] * 1024)
    assert peaks[1] - peaks[0] < 3 * 250, peaks  # Procgen's pictures and torch, once each, are 500 MB
