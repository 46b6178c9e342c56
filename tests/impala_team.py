"""Actors as threads and one learner, in one process, with everything that was learned from kept."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.parallel.heartbeat import Heartbeats
from rlcb.parallel.impala_actor import Actor
from rlcb.parallel.impala_learner import ImpalaLearner, open_shared_parts
from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.unroll_store import UnrollStore
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.rl import impala
from rlcb.rl.communicator import Communicator
from rlcb.training.base import ProcessSetup, Update
from rlcb.training.run_folder import RunFolder
from rlcb.training.run_spec import RunSpec
from tests import runs, step_env

N_STEPS = 4


class SlowActor(Actor):
    """Loses time before every step of its environments."""

    def heartbeat(self) -> None:
        time.sleep(0.004)
        super().heartbeat()


@dataclass
class Seen:
    """What one update learned from."""

    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    scaled_rewards: NDArray[np.float32]
    bootstrap_values: NDArray[np.float32]
    last_observations: NDArray[np.float32]
    versions: NDArray[np.int64]
    """By column."""
    update: Update | None = None


class Team:
    """Actors in threads, the learner in this one."""

    MEMORY = 2**20
    OVERRIDES: ClassVar[dict[str, Any]] = {}
    """Settings that a subclass changes, by section."""
    COMMUNICATOR: ClassVar[type[Communicator]] = Communicator

    def __init__(
        self,
        actors: int,
        max_policy_lag: int,
        envs_per_actor: int = 2,
        batch_size: int | None = None,
        slow: int | None = None,
        normalize_rewards: bool = False,
        seats: int = 0,
        **env_kwargs: int,
    ) -> None:
        """`slow` is the number of a slow actor; `batch_size` counts unrolls; so many actors of other machines
        may join as `seats` says."""
        self.config = config(
            actors, max_policy_lag, envs_per_actor, batch_size, normalize_rewards, seats, **env_kwargs
        )
        if self.OVERRIDES:
            data = self.config.model_dump()
            for section, values in self.OVERRIDES.items():
                data[section] |= values
            self.config = build_config(data, "test")
        context = multiprocessing.get_context("spawn")
        self.heartbeats = Heartbeats(context, actors + 1)
        self.queues = SlotQueue(context.Pipe(duplex=False)), SlotQueue(context.Pipe(duplex=False))
        spec = RunSpec(self.config, RunFolder(None, self.config))
        contexts = [self._context(rank) for rank in range(actors + 1)]
        self.actors = [
            (SlowActor if number == slow else Actor)(spec, contexts[1 + number]) for number in range(actors)
        ]
        spaces, memory = self.actors[0].spaces, bytearray(self.MEMORY)
        self.learner = ImpalaLearner(
            ProcessSetup(
                self.config,
                communicator=self.COMMUNICATOR(),
                heartbeat=contexts[0].check,
                shared_memory=lambda size: memory,
            ),
            spaces,
            contexts[0],
        )
        self.store: UnrollStore = self.learner.store
        for actor in self.actors:
            store, weights = open_shared_parts(self.config, spaces, actor.num_parameters, lambda size: memory)
            actor.join(store, weights)
        self.parameters = [self.learner.learner.parameters.detach().clone()]
        """Those of every version."""
        self.seen: list[Seen] = []
        self.errors: list[BaseException] = []

    def _context(self, rank: int) -> SupervisedContext:
        connection: Any = None
        return SupervisedContext(
            connection=connection,
            rank=rank,
            generation=self.heartbeats.begin(rank),
            heartbeats=self.heartbeats,
            queues=self.queues,
        )

    def _act(self, actor: Actor) -> None:
        try:
            actor.act()
        except BaseException as error:
            self.errors.append(error)

    @contextmanager
    def acting(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._act, args=(actor,)) for actor in self.actors]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.learner.finish()
            for thread in threads:
                thread.join(20)
        assert self.errors == []

    def wait_until_all_is_written(self) -> None:
        """Wait until actors have written every slot that they may, as far ahead as the policy may lag."""
        store, per_update = self.store, self.learner.batches.batch_size
        due = len(self.seen) * per_update + store.size.slots
        runs.wait_until(lambda: store.begun.sum() == due and all(self.heartbeats.waiting[1:]))

    def learn(self, updates: int, pause: float = 0.0, behind: bool = False) -> list[Seen]:
        """Make updates; `pause` makes the learner slower, and `behind` one that actors always wait for."""
        real = impala.update

        def spy(learner: Any, rollout: Any, config: Any, number: int, columns: Any) -> Any:
            time.sleep(pause)
            if behind:
                self.wait_until_all_is_written()
            store, slots = self.store, columns // self.config.envs_per_process
            last = store.last_observations.reshape(-1, *rollout.spaces.observation_shape)[columns]
            names = ("observations", "actions", "log_probs", "rewards", "scaled_rewards", "bootstrap_values")
            self.seen.append(
                Seen(
                    *(getattr(rollout, name)[:, columns].copy() for name in names),
                    last.copy(),
                    store.version[slots].copy(),
                )
            )
            return real(learner, rollout, config, number, columns)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(impala, "update", spy)
            for _ in range(updates):
                update = self.learner.iterate(1e-2)
                self.seen[-1].update = update
                self.parameters.append(self.learner.learner.parameters.detach().clone())
        return self.seen


def config(
    actors: int,
    max_policy_lag: int,
    envs_per_actor: int = 2,
    batch_size: int | None = None,
    normalize_rewards: bool = False,
    seats: int = 0,
    **env_kwargs: int,
) -> Config:
    data: dict[str, Any] = {
        "algorithm": "impala",
        "mode": "parallel",
        "env": {
            "id": step_env.ID,
            "num_envs": actors * envs_per_actor,
            "kwargs": {"length": N_STEPS, **env_kwargs},
        },
        "model": {"mlp_sizes": (4,)},
        "training": {
            "n_steps": N_STEPS,
            "batch_size": None if batch_size is None else batch_size * N_STEPS * envs_per_actor,
            "n_epochs": 1,
            "normalize_advantages": False,
            "normalize_rewards": normalize_rewards,
            "gamma": 0.9,
            "optimizer": "rmsprop",
        },
        "impala": {
            "num_actors": actors,
            "num_learners": 1,
            "max_policy_lag": max_policy_lag,
            "actor_nice": 0,
            "check_unwritten": True,
        },
        "logging": {"tensorboard": False},
    }
    if seats:
        data["impala"] |= {"actor_port": 0, "max_remote_actors": seats}
    return build_config(data, "test")


def steps_by_environment(seen: list[Seen]) -> dict[tuple[float, float], list[float]]:
    """The step numbers that were learned from, in the order of learning, of every environment."""
    steps: dict[tuple[float, float], list[float]] = {}
    for each in seen:
        for i in range(each.rewards.shape[1]):
            column = each.observations[:, i]
            assert (column[:, :2] == column[0, :2]).all()  # one environment's from first to last
            steps.setdefault((column[0, 0], column[0, 1]), []).extend(column[:, 2].tolist())
    return steps
