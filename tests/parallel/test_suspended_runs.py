"""Who is alive is waited for, however long it takes, and time in which a run is suspended does not count."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_group

from rlcb.cluster.communicator import ClusterCommunicator
from rlcb.cluster.watchdog import Watchdog
from rlcb.config.settings import ClusterConfig
from rlcb.parallel.world import World
from rlcb.processes.suspend_clock import SUSPENDED_SECONDS, SuspendClock
from tests import fault_env, runs, step_env
from tests.node_context import NodeContext

pytestmark = pytest.mark.timeout(300)

TIMEOUT, SUSPENDED = 5, 11  # seconds; twice the first is as long as processes may take to meet over gloo
FLAGS = (
    *("--env", fault_env.ID, "--num-envs", 4, "--n-steps", 8, "--total-timesteps", 1e7),
    *("--set", "logging.tensorboard=false", "--set", "env.kwargs.delay=0.002"),
)
PPO = ("--num-workers", 2, "--batch-size", 16, "--n-epochs", 1)
RUNS = {
    "workers": ("train_ppo_parallel.py", *PPO, "--set", f"parallel.timeout_seconds={TIMEOUT}"),
    "actors": (
        *("train_impala_parallel.py", "--num-actors", 2, "--set", "impala.num_learners=1"),
        *("--set", f"parallel.timeout_seconds={TIMEOUT}"),
    ),
    "ranks": ("train_ppo_distributed.py", *PPO, "--set", f"cluster.timeout_seconds={TIMEOUT}"),
}


@pytest.mark.slow
def test_runs_that_were_suspended_for_longer_than_their_time_out_go_on(tmp_path: Path) -> None:
    """Runs of every kind, suspended together."""
    processes: dict[Path, subprocess.Popen[str]] = {}
    try:
        for kind, words in RUNS.items():
            folder = tmp_path / kind
            surroundings = {**os.environ, "RUN": str(folder)}
            processes[folder] = runs.start(
                *words, *FLAGS, "--output-dir", folder, env=surroundings, start_new_session=True
            )
            runs.wait_for_rows(folder, 3)
            os.killpg(processes[folder].pid, signal.SIGSTOP)
        time.sleep(SUSPENDED)
        for folder, process in processes.items():
            process.send_signal(signal.SIGCONT)  # it looks at its workers before any of them has made a step
            time.sleep(1.0)
            before = len(runs.rows(folder))
            os.killpg(process.pid, signal.SIGCONT)
            runs.wait_for_rows(folder, before + 20)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 128 + signal.SIGTERM, (folder.name, errors)
            assert "made no progress" not in errors
            runs.wait_until(
                lambda folder=folder: not runs.processes_of(folder), what="processes were not gone"
            )
    finally:
        for process in processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


@pytest.mark.slow
def test_who_waits_for_a_slow_worker_waits_as_long_as_its_rollout_takes(tmp_path: Path) -> None:
    """Its 40 steps of 0.3 s take longer than processes may take to meet; each by itself is short."""
    result = runs.run(
        "train_ppo_parallel.py", "--env", step_env.ID, "--num-workers", 2, "--num-envs", 2, "--n-steps", 40,
        "--batch-size", 80, "--n-epochs", 1, "--total-timesteps", 80, "--set", "env.kwargs.slow=worker-1",
        "--set", "env.kwargs.delay=0.3", "--set", f"parallel.timeout_seconds={TIMEOUT}",
        "--output-dir", tmp_path / "run",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert runs.record(tmp_path / "run")["total_timesteps"] == 80


def test_ranks_wait_for_each_other_without_a_limit() -> None:
    watch: Any = SimpleNamespace(names=["rank 0"], waiting=nullcontext, check=lambda: None)
    world = World("hand", 1, 0, 1, 0, "127.0.0.1", None)
    ClusterCommunicator(HashStore(), world, ClusterConfig(timeout_seconds=7.0), watch)
    try:
        backend = _get_default_group()._get_backend(torch.device("cpu"))
        assert backend.options._timeout > timedelta(days=7)
    finally:
        dist.destroy_process_group()


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass by which nobody looks at the clock of src/rlcb/processes/suspend_clock.py."""
    passed = [0.0]

    def forward(seconds: float) -> None:
        passed[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr("rlcb.processes.suspend_clock.time", clock)
    return forward


def test_running_time_stands_still_while_nobody_can_look_at_it(pass_time: Callable[[float], None]) -> None:
    clock = SuspendClock()
    begun = clock()
    for _ in range(10):
        pass_time(SUSPENDED_SECONDS - 1)
        clock()
    assert clock() - begun == pytest.approx(10 * (SUSPENDED_SECONDS - 1), abs=1)
    assert clock.suspension() == 0
    pass_time(3600)
    assert clock() - begun == pytest.approx(10 * (SUSPENDED_SECONDS - 1), abs=1)
    pass_time(3600)
    assert clock.suspension() == pytest.approx(7200, abs=1)
    assert clock.suspension() == 0


def test_a_rank_that_was_suspended_accuses_neither_itself_nor_others(
    pass_time: Callable[[float], None],
) -> None:
    world = World(
        "hand", num_nodes=2, node_rank=0, num_workers=1, local_rank=0, master_addr="", master_port=1
    )
    store, said = HashStore(), []
    store.set("beat/1", "1")  # the other rank, which was suspended as well, has not yet said that it lives
    watch = Watchdog(lambda: store, world, ["rank 0", "rank 1"], 60.0, NodeContext(hangs=said))

    def looks() -> int:
        return int(store.get("beat/0"))

    try:
        watch.check()
        runs.wait_until(lambda: looks() > 1)
        pass_time(3600)
        before = looks()
        runs.wait_until(lambda: looks() > before + 2)
        assert watch.alarm is None
        watch.check()
    finally:
        watch._closed.set()
    assert said == []
