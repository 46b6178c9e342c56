"""The trainer: one process that collects rollouts and learns from them, update after update.

Sequential runs have one trainer, data-parallel and distributed runs one in every process. The trainer does
not know how many there are; its communicator does.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator
from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch

from rlcb import seeding
from rlcb.config.derived import caches_activations, with_shard_of_minibatch
from rlcb.envs.vector_env import groups_of, make_vector_env, native_threads, spaces_of
from rlcb.errors import UsageError
from rlcb.rl.activation_cache import ActivationCache, activation_bytes
from rlcb.rl.collector import Collector, join_states, slice_state
from rlcb.rl.gae import generalised_advantages
from rlcb.rl.reward_scaler import RewardScaler
from rlcb.rl.rollout_buffer import RolloutBuffer, rollout_bytes
from rlcb.rl.statistics import Episode
from rlcb.training.averaging import AverageSchedule
from rlcb.training.base import (
    REWARD_PER_STEP,
    Counters,
    LearningProcess,
    ProcessSetup,
    Update,
    slowest_rank,
)

logger = logging.getLogger(__name__)

BUSY_PHASES = ("env", "inference", "learn")  # in the other phases a process waits for others


class Trainer(LearningProcess):
    """Environments, collector, rollout, reward scaler and learner of one process."""

    def __init__(self, setup: ProcessSetup) -> None:
        """Build everything. Raises UsageError if environments or network cannot be made as configured."""
        config, communicator = setup.config, setup.communicator
        training, seed, count = config.training, config.training.seed, config.envs_per_process
        self.learning_config = with_shard_of_minibatch(config, communicator.local_size)
        self.first_env = communicator.rank * count
        self.groups, envs = groups_of(range(self.first_env, self.first_env + count), config.group_size)
        group_seeds = [seeding.group_seed(seed, group) for group in self.groups]
        threads = native_threads(setup.num_threads)
        self.env = make_vector_env(config.env, group_seeds, config.group_size, threads, envs=envs)
        super().__init__(setup, spaces_of(self.env))
        self.rollout, self.local_rollout = self._make_rollout()
        cache = self.learner.activation_cache = self._make_activation_cache()
        act = None if cache is None else cache.act
        self.collector = Collector(
            self.env, self.model, seed, self.first_env, self.timer, setup.heartbeat, act
        )
        self.scaler = RewardScaler(count, training.gamma, training.reward_clip)
        every = config.cluster.average_every
        self.averages = None if every is None else AverageSchedule(every, communicator)
        """When the nodes average what they learned; None if all of them make each step together."""
        self._local_reward_per_step = 0.0
        self.reward_per_step = 0.0
        """Mean raw reward of a timestep of the last update, over all processes; in the main process only."""

    def _make_rollout(self) -> tuple[RolloutBuffer, RolloutBuffer]:
        """Return the rollout of the node, which is learned from, and the columns that this process fills."""
        n_steps, count = self.config.training.n_steps, self.config.envs_per_process
        num_envs = count * self.communicator.local_size
        size, block = rollout_bytes(n_steps, num_envs, self.spaces), None
        if self.setup.shared_memory is not None:
            block = self.shared_memory(size)
        rollout = RolloutBuffer(n_steps, num_envs, self.spaces, block)
        return rollout, rollout.columns(self.communicator.local_rank * count, count)

    def _make_activation_cache(self) -> ActivationCache | None:
        """Return a cache for acting and learning, or None if the algorithm, the network, the configuration or
        the memory does not allow one. Raises UsageError if the configuration requires an impossible one."""
        if not self.config.traits.caches_activations:
            return None
        size = activation_bytes(self.model)
        if self.config.hardware.keep_acting_passes and not size:
            raise UsageError("hardware.keep_acting_passes = true: this network has no convolutions to keep")
        if not caches_activations(self.config, size):
            return None
        return ActivationCache(self.model, self.local_rollout, size, self.setup.heartbeat)

    def facts(self) -> dict[str, str]:
        facts, cache = super().facts(), self.learner.activation_cache
        if self.averages is not None:
            facts["gradient sums"] = f"within nodes; {self.averages.describe()}"
        if cache is not None:
            size = cache.sample_bytes * self.local_rollout.num_samples / 2**20
            facts["activations"] = f"cached while acting, {size:.0f} MB per process"
        return facts

    def iterate(self, learning_rate: float) -> Update:
        """Make one update: collect a rollout, compute its advantages, learn from it."""
        update_number = self.counters.updates
        episodes = self.collector.collect(self.local_rollout, update_number)
        with self.timer("wait"):
            self.communicator.barrier()
        self._local_reward_per_step = self.local_rollout.mean_reward()
        self._compute_advantages()
        self.communicator.barrier()  # from here on every process reads what the others wrote
        self.learner.set_learning_rate(learning_rate)
        metrics = self.algorithm.update(self.learner, self.rollout, self.learning_config, update_number)
        notes: list[str] = []
        if self.averages is not None:
            if self.averages.due(update_number + 1):
                line = self.averages.average(self.learner, update_number + 1)
                notes = [] if line is None else [line]
            metrics = self._means_over_nodes(metrics)
        self.count_update(self.communicator.over_all_nodes(self.rollout.num_samples))
        all_episodes = self.exchange(episodes)
        return Update(all_episodes, {**metrics, REWARD_PER_STEP: self.reward_per_step}, notes)

    def nodes_agree_after(self, updates: int) -> bool:
        return self.averages is None or self.averages.due(updates)

    def _means_over_nodes(self, metrics: dict[str, float | None]) -> dict[str, float | None]:
        """Return the means of the nodes' metrics, which differ if nodes learn by themselves."""
        known = {name: value for name, value in metrics.items() if value is not None}
        sums = self.communicator.sum_floats(list(known.values()))
        means = {name: total / self.communicator.world_size for name, total in zip(known, sums)}
        return {**metrics, **means}

    @contextlib.contextmanager
    def _nodes_averaged(self) -> Iterator[None]:
        """Context manager in which the learner holds the means over all nodes; then each node's own again."""
        own = [vector.clone() for vector in self.learner.averaged()]
        self.learner.average(self.communicator)
        try:
            yield
        finally:
            for vector, before in zip(self.learner.averaged(), own, strict=True):
                vector.copy_(before)

    def _compute_advantages(self) -> None:
        """Write scaled rewards and, for algorithms that use GAE, advantages and returns of this process's
        environments into the rollout."""
        rollout, training = self.local_rollout, self.config.training
        rollout.scaled_rewards[:] = rollout.rewards
        if training.normalize_rewards:
            ended = rollout.terminated | rollout.truncated
            rollout.scaled_rewards[:] = self.scaler.scale(rollout.rewards, ended, self.communicator)
        if not self.algorithm.USES_GAE:
            return
        rollout.advantages[:], rollout.returns[:] = generalised_advantages(
            rollout.scaled_rewards,
            rollout.values,
            rollout.bootstrap_values,
            rollout.terminated,
            rollout.truncated,
            training.gamma,
            training.gae_lambda,
        )

    def exchange(self, episodes: list[Episode]) -> list[Episode]:
        report: dict[str, Any] = {"episodes": episodes, "phase_seconds": dict(self.timer.seconds)}
        report["reward_per_step"] = self._local_reward_per_step
        if self.take_state:
            report["collector"] = self.collector.state()
            report["discounted_returns"] = self.scaler.returns.tolist()
            report["threads"] = torch.get_num_threads()
        agree = self.nodes_agree_after(self.counters.updates)
        between = self.take_state and not agree  # what is saved must hold all nodes' learning
        with self._nodes_averaged() if between else contextlib.nullcontext():
            reports = self.communicator.gather(report)
            if reports is None:
                return []
            self.phase_seconds = [report["phase_seconds"] for report in reports]
            if self.take_state:
                self._state = self._join_state(reports)
        self.reward_per_step = fmean(report["reward_per_step"] for report in reports)
        all_episodes = [episode for report in reports for episode in report["episodes"]]
        return sorted(all_episodes, key=lambda episode: (episode.step, episode.env))

    def _join_state(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a copy of everything that the next update depends on, from the reports of all processes."""
        return {
            "spaces": self.spaces.to_dict(),
            "learner": copy.deepcopy(self.learner.state()),
            "counters": asdict(self.counters),
            "scaler": {
                **self.scaler.state(),
                "returns": [value for report in reports for value in report["discounted_returns"]],
            },
            "collector": join_states([report["collector"] for report in reports]),
            "rng": {"torch": torch.get_rng_state()},
            "phase_seconds": self.phase_seconds,
            "threads": [report["threads"] for report in reports],
            **({} if self.averages is None else {"averages": self.averages.state()}),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.require_spaces(state)
        envs = slice(self.first_env, self.first_env + self.config.envs_per_process)
        self.learner.load(state["learner"])
        self.counters = Counters(**state["counters"])
        self.scaler.load({**state["scaler"], "returns": state["scaler"]["returns"][envs]})
        torch.set_rng_state(state["rng"]["torch"])
        if self.averages is not None and "averages" in state:  # older versions only had fixed numbers
            self.averages.load(state["averages"])
        self.timer.seconds.update(state["phase_seconds"][self.communicator.rank])
        if not self.collector.load(slice_state(state["collector"], envs)):
            if self.communicator.is_main:
                logger.warning("%s cannot be saved: the run continues with new episodes", self.config.env.id)
            self._restart_environments()

    def _restart_environments(self) -> None:
        """Start new episodes from seeds that the run has not used."""
        seed, update = self.config.training.seed, self.counters.updates
        group_seeds = [seeding.restart_seed(seed, group, update) for group in self.groups]
        self.collector.observations = self.env.restart(group_seeds)
        self.scaler.returns[:] = 0.0  # the unfinished episodes are lost

    def metrics(self) -> dict[str, Any]:
        """Return the slowest rank of a distributed run, for which the others wait, and measured averages."""
        if not self.state():
            return {}
        busy = [sum(seconds[phase] for phase in BUSY_PHASES) for seconds in self.state()["phase_seconds"]]
        averages = {} if self.averages is None else self.averages.metrics()
        return {**slowest_rank(self.communicator, busy), **averages}

    def close(self) -> None:
        self.env.close()
