"""Workers of A3C in this process: their lock, the times that they go on from, where their rollouts lie."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcb.config.config import Config
from rlcb.config.settings import ParallelConfig
from rlcb.config.yaml_file import build_config
from rlcb.parallel.a3c import A3CCommunicator, A3CTrainer
from rlcb.parallel.heartbeat import Heartbeats
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.rl.communicator import Communicator
from rlcb.rl.reward_scaler import RewardScaler, SharedRewardScaler
from rlcb.rl.timing import PHASES
from rlcb.training import trainer
from rlcb.training.base import ProcessSetup
from tests import step_env

pytestmark = pytest.mark.timeout(120)


def make_config(workers: int, **parallel: object) -> Config:
    return build_config(
        {
            "algorithm": "a3c",
            "mode": "parallel",
            "env": {"id": step_env.ID, "num_envs": 2 * workers},
            "model": {"mlp_sizes": (4,)},
            "training": {"n_steps": 8, "batch_size": None, "n_epochs": 1},
            "parallel": {"num_workers": workers, **parallel},
        },
        "test",
    )


@dataclass(kw_only=True)
class OneBlock(SupervisedContext):
    """All workers get the memory of the same dictionary; notes which kind each asks for."""

    block: dict[str, bytearray]
    buffers: list[str] = field(default_factory=list)

    def shared_memory(self, config: ParallelConfig, size: int) -> bytearray:
        self.buffers.append(config.buffer)
        return self.block.setdefault("shared", bytearray(size))


class Workers:
    """Trainers that share one block of memory and one lock."""

    def __init__(self, count: int, **parallel: object) -> None:
        config = make_config(count, **parallel)
        self.lock = threading.Lock()
        self.heartbeats = Heartbeats(multiprocessing.get_context("spawn"), count)
        self.block: dict[str, bytearray] = {}
        with ThreadPoolExecutor(count) as pool:  # they wait for each other
            self.trainers = list(pool.map(lambda rank: self._make(config, rank), range(count)))

    def _make(self, config: Config, rank: int) -> A3CTrainer:
        connection: Any = None
        context = OneBlock(
            connection=connection,
            rank=rank,
            generation=self.heartbeats.begin(rank),
            heartbeats=self.heartbeats,
            lock=self.lock,
            block=self.block,
        )
        return A3CTrainer(
            ProcessSetup(config, A3CCommunicator(context, config.num_processes), heartbeat=context.check)
        )


def test_only_the_statistics_of_rewards_are_computed_while_others_wait_for_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers, held = Workers(1), []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            held.append((name, workers.lock.locked()))
            return function(*arguments, **options)

        return noted

    monkeypatch.setattr(RewardScaler, "observe", noting("observe", RewardScaler.observe))
    monkeypatch.setattr(trainer, "generalised_advantages", noting("gae", trainer.generalised_advantages))
    workers.trainers[0].iterate(1e-3)
    assert held == [("observe", True), ("gae", False)]


def test_scalers_that_share_their_statistics_scale_by_what_all_have_observed() -> None:
    rng, lock = np.random.default_rng(5), threading.Lock()
    statistics = np.zeros(3)
    scalers = [SharedRewardScaler(2, 0.9, 10.0, statistics, lambda: lock) for _ in range(2)]
    samples: list[np.ndarray] = []
    returns = [np.zeros(2), np.zeros(2)]
    for turn in (0, 1, 1, 0):
        rewards, ended = rng.normal(3, 2, (5, 2)).astype(np.float32), rng.random((5, 2)) < 0.3
        scaled = scalers[turn].scale(rewards, ended, Communicator())
        for t in range(5):
            returns[turn] = 0.9 * returns[turn] + rewards[t]
            samples.append(returns[turn].copy())
            returns[turn] = np.where(ended[t], 0.0, returns[turn])
        np.testing.assert_allclose(scaled, np.clip(rewards / np.std(samples), -10, 10), rtol=1e-5)
    assert statistics[0] == np.size(samples) == 40
    assert statistics[1] == pytest.approx(np.mean(samples))


def test_a_resumed_run_goes_on_from_the_seconds_that_each_worker_had() -> None:
    """So the first row of its log has what was spent since, and no state forgets a worker's time."""
    workers = Workers(2)
    main = workers.trainers[0]
    main.exchange([])
    saved = [
        {phase: 1000.0 * rank + number for number, phase in enumerate(PHASES, 1)} for rank in range(1, 3)
    ]
    state = {**main.state(), "phase_seconds": saved}
    resumed = Workers(2)
    for each in resumed.trainers:
        each.load(state)
    resumed.trainers[0].exchange([])
    assert resumed.trainers[0].phase_seconds == saved
    assert resumed.trainers[0].state()["phase_seconds"] == saved


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is mapped is to be read on Linux only")
def test_the_rollout_lies_in_a_file_where_that_is_asked_for(tmp_path: Path) -> None:
    def files() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split(maxsplit=5)[5] for line in lines if str(tmp_path) in line}

    in_memory = Workers(1).trainers[0]
    assert files() == set()
    on_disk = Workers(1, buffer="mmap", buffer_dir=str(tmp_path)).trainers[0]
    assert len(files()) == 1
    for each in (in_memory, on_disk):
        each.iterate(1e-3)
    assert torch.equal(on_disk.shared_parameters, in_memory.shared_parameters)
    others = Workers(2, buffer="mmap", buffer_dir=str(tmp_path)).trainers
    assert len(files()) == 1 + len(others)  # each worker has its own


def test_what_workers_share_is_in_memory_wherever_their_rollouts_are(tmp_path: Path) -> None:
    (worker,) = Workers(1, buffer="mmap", buffer_dir=str(tmp_path)).trainers
    context = worker.communicator.context
    assert isinstance(context, OneBlock)
    assert context.buffers == ["auto"]
