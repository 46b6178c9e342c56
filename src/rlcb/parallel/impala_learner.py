"""The learner of IMPALA: takes batches of unrolls that actors wrote, learns, and publishes its parameters.

There may be several learner processes: each takes its shard of every batch, and their gradients are summed,
as in data-parallel training. In a distributed run every node contributes equally many unrolls to a batch;
slots, actors and waiting times here are those of one node.

T is training.n_steps, E the environments of an actor, N = slots * E the columns of the node's store, and B
the columns of the node's part of a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlcb.config.config import Config
from rlcb.envs.spaces import Spaces
from rlcb.errors import RunError, UsageError
from rlcb.parallel.calibration import Calibration
from rlcb.parallel.gate import Gate
from rlcb.parallel.parameter_snapshot import ParameterSnapshot, snapshot_bytes
from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.unroll_batches import Batches
from rlcb.parallel.unroll_store import StoreSize, UnrollStore, store_bytes
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.rl import impala
from rlcb.rl.reward_scaler import RewardScaler
from rlcb.rl.statistics import Episode
from rlcb.rl.timing import PHASES
from rlcb.training.base import (
    REWARD_PER_STEP,
    Counters,
    LearningProcess,
    ProcessSetup,
    Update,
    slowest_rank,
)


def store_size(config: Config, spaces: Spaces) -> StoreSize:
    """Return the size of a node's store of unrolls. Raises UsageError if a queue cannot hold its slots."""
    slots = (config.impala.max_policy_lag + 1) * unrolls_per_batch(config)
    if slots > SlotQueue.CAPACITY:
        raise UsageError(
            f"impala.max_policy_lag = {config.impala.max_policy_lag} needs {slots} slots of unrolls; "
            f"there can be {SlotQueue.CAPACITY}"
        )
    return StoreSize(
        slots,
        config.actors_per_node,
        config.training.n_steps,
        config.envs_per_process,
        spaces,
        config.num_seats,
    )


def unrolls_per_batch(config: Config) -> int:
    """Return the number of unrolls that one node contributes to a batch."""
    return config.timesteps_per_update // config.num_nodes // config.timesteps_per_unroll


def open_shared_parts(
    config: Config, spaces: Spaces, num_parameters: int, shared_memory: Callable[[int], Any]
) -> tuple[UnrollStore, ParameterSnapshot]:
    """Map the block of memory that actors and learners of a node share: unrolls and parameters."""
    size = store_size(config, spaces)
    first = store_bytes(size)
    memory = memoryview(shared_memory(first + snapshot_bytes(num_parameters)))
    return UnrollStore(size, memory[:first]), ParameterSnapshot(num_parameters, memory[first:])


class ImpalaLearner(LearningProcess):
    """One learner process. The first one of a node also hands out slots, scales rewards and publishes
    parameters."""

    def __init__(self, setup: ProcessSetup, spaces: Spaces, context: SupervisedContext) -> None:
        """Build network and learner, and open the memory that the actors share. `spaces` are those of the
        actors' environments."""
        config = setup.config
        super().__init__(setup, spaces)
        self.context = context
        self.calibration = context.calibration
        self.store, self.snapshot = open_shared_parts(
            config, spaces, len(self.learner.parameters), self.shared_memory
        )
        training, size = config.training, unrolls_per_batch(config)
        self.gate = self._open_gate()
        """Lets actors of other machines take part; only in the first learner of a run that accepts them."""
        check, seats = config.impala.check_unwritten, None if self.gate is None else self.gate.seats
        self.batches = Batches(self.store, context, setup.heartbeat, size, check, seats)
        writers_envs = config.envs_per_node + config.num_seats * config.envs_per_process
        self.scaler = RewardScaler(writers_envs, training.gamma, training.reward_clip)
        self.waits_before = self._actor_waits()
        """Seconds that each actor of this node had waited by the last update boundary."""
        self.wait_before = 0.0
        """Seconds that this learner had waited by the last update boundary."""
        self.lags = np.zeros(1, np.int64)
        """Ages of this node's unrolls in the last batch, in updates."""
        self.reward_per_step = 0.0
        """Mean raw reward of a timestep of this node's last batch."""
        self.joint_metrics: dict[str, float | None] = {}
        """Policy lag, restarts, waiting times and rewards of all nodes in the last update; main process
        only."""

    def _open_gate(self) -> Gate | None:
        queues = self.context.queues
        if not self.config.accepts_actors or not self.leads:
            return None
        assert queues is not None
        return Gate(self.config, self.spaces, self.store, self.snapshot, queues)

    @property
    def leads(self) -> bool:
        """Whether this learner is the one that handles the actors of its node."""
        return self.communicator.local_rank == 0

    def facts(self) -> dict[str, str]:
        impala, size = self.config.impala, self.store.size
        slot_mb = store_bytes(size) / size.slots / 2**20
        where = "" if self.communicator.num_nodes == 1 else ", on each node"
        return {
            **super().facts(),
            **({} if self.calibration is None else {"calibration": self.calibration.describe()}),
            "unrolls": f"{self.batches.batch_size} in a batch, {size.slots} slots of {slot_mb:.1f} MB"
            f"{where}, policy lag at most {impala.max_policy_lag}",
            **({} if self.gate is None else {"remote actors": self.gate.describe()}),
        }

    def iterate(self, learning_rate: float) -> Update:
        """Make one update: wait for a batch of unrolls, learn from it, publish the parameters."""
        if self.leads and not self.batches.given:  # the first update
            self.snapshot.publish(self.learner.parameters, self.counters.updates)
            self.batches.give_out(range(self.store.size.slots))
            if self.gate is not None:
                self.gate.start()
        slots = self._take_batch()
        columns = self.store.columns(slots)  # [B], into the rollout [T, N, ...]
        self.lags = self.counters.updates - self.store.version[slots]
        if self.lags.max() > self.config.impala.max_policy_lag:
            raise RunError(f"an unroll is {self.lags.max()} updates old: the order of slots was lost")
        self._bootstrap(columns)
        self.learner.set_learning_rate(learning_rate)
        metrics = impala.update(self.learner, self.store.rollout, self.config, self.counters.updates, columns)
        self.count_update(len(columns) * self.communicator.num_nodes * self.config.training.n_steps)
        episodes: list[Episode] = []
        if self.leads:  # the other learners are done as well, since their gradients were summed
            episodes = self.store.episodes_of(slots)
            self._note_remote(slots)
            self.reward_per_step = self.store.rollout.mean_reward(columns)
            self.snapshot.publish(self.learner.parameters, self.counters.updates)
            self.batches.give_out(slots)
        all_episodes = self.exchange(episodes)
        notes = [] if self.gate is None else self.gate.news()
        return Update(all_episodes, metrics | self.joint_metrics, notes)

    def _note_remote(self, slots: list[int]) -> None:
        """Count the unrolls of the batch by their host, and tell the gate the run's progress."""
        if self.gate is not None:
            self.gate.check()
            self.gate.seats.count_learned(slots)
            self.gate.progress = asdict(self.counters)

    def _take_batch(self) -> list[int]:
        """Wait for the node's next batch, scale its rewards, and return its slots in every learner.

        The node's first learner waits for the actors (phase `wait`) and then for other nodes (`sync`). The
        node's other learners wait for the first one (`wait`).
        """
        batch: list[int] = []
        discounted = np.empty(0)
        if self.leads:
            with self.timer("wait"):
                batch = self.batches.take()
            discounted = self._discount(batch)  # [T, B]
        phase = "sync" if self.leads else "wait"
        scales = self.config.training.normalize_rewards
        if scales:
            with self.timer(phase):
                self.scaler.observe(discounted, self.communicator)
        for slot in batch:
            unroll = self.store.unroll(slot)
            unroll.scaled_rewards[:] = self.scaler.scaled(unroll.rewards) if scales else unroll.rewards
        with self.timer(phase):
            return self._broadcast_slots(batch)

    def _broadcast_slots(self, batch: list[int]) -> list[int]:
        """Return the slots of this node's batch, which only its first learner knows, in every learner."""
        communicator, size = self.communicator, self.batches.batch_size
        table = np.zeros((communicator.num_nodes, size))  # a row for each node; all learners sum it
        if self.leads:
            table[communicator.node_rank] = batch
        slots = communicator.sum_floats(table.reshape(-1).tolist())
        return [int(slot) for slot in slots[communicator.node_rank * size :][:size]]

    def _discount(self, batch: list[int]) -> NDArray[np.float64]:
        """Return the discounted returns [T, B] of a batch, for the reward scaler. An actor's unrolls come in
        the order of time, so each continues where the one before ended."""
        parts = []
        for slot in batch:
            unroll, actor = self.store.unroll(slot), self.store.actor_of(slot)
            returns = self.scaler.returns[actor * unroll.num_envs :][: unroll.num_envs]  # [E]
            if self.store.fresh[slot]:
                returns[:] = 0.0
            parts.append(self.scaler.discount(unroll.rewards, unroll.terminated | unroll.truncated, returns))
        return np.concatenate(parts, axis=1)

    def _bootstrap(self, columns: NDArray[np.int64]) -> None:
        """Write this learner's value of the observation after each unroll's last step, for its shard of the
        batch, into the last row of bootstrap_values."""
        shard = self.communicator.rank_shard(columns)
        values = self.store.rollout.bootstrap_values[-1]  # [N]
        last = self.store.last_observations.reshape(-1, *self.spaces.observation_shape)  # [N, ...]
        for start in range(0, len(shard), self.microbatch_size):
            part = shard[start : start + self.microbatch_size]
            with self.timer("learn"), torch.inference_mode():
                now = self.model(torch.from_numpy(last[part]))[1].numpy()
            # A truncated episode keeps the actor's value: its final observation is not in the store.
            values[part] = np.where(self.store.rollout.truncated[-1, part], values[part], now)

    def _actor_waits(self) -> NDArray[np.float64]:
        """Return the seconds that each actor of this node has waited."""
        return self.store.phases[: self.store.size.actors, PHASES.index("wait")].copy()

    def _contribution(self, episodes: list[Episode]) -> dict[str, Any]:
        """Return this process's part of `exchange`; a node's first learner adds its actors."""
        store, wait = self.store, self.timer.seconds["wait"]
        part: dict[str, Any] = {
            "phases": dict(self.timer.seconds),
            "threads": torch.get_num_threads(),
            "episodes": episodes,
            "waited": wait - self.wait_before,
        }
        self.wait_before = wait
        if self.leads:
            waits, rows = self._actor_waits(), store.phases[: store.size.actors].tolist()
            part["actor_phases"] = [dict(zip(PHASES, row, strict=True)) for row in rows]
            part["actor_threads"], part["begun"] = store.threads.tolist(), store.begun.tolist()
            part["actors_waited"] = float(np.mean(waits - self.waits_before))
            part["lags"] = self.lags.tolist()
            part["reward_per_step"] = self.reward_per_step
            part["replaced"] = self.batches.replaced
            self.waits_before = waits
        return part

    def exchange(self, episodes: list[Episode]) -> list[Episode]:
        parts = self.communicator.gather(self._contribution(episodes))
        if parts is None:
            return []
        nodes = [part for part in parts if "begun" in part]
        self.phase_seconds = [part["phases"] for part in parts]
        self.phase_seconds += [phases for node in nodes for phases in node["actor_phases"]]
        lags = [lag for node in nodes for lag in node["lags"]]
        self.joint_metrics = {
            REWARD_PER_STEP: fmean(node["reward_per_step"] for node in nodes),
            "impala/policy_lag_mean": float(np.mean(lags)),
            "impala/policy_lag_max": float(max(lags)),
            "impala/actor_restarts": float(sum(node["replaced"] for node in nodes)),
            "profile/actor_wait_seconds": round(fmean(node["actors_waited"] for node in nodes), 5),
            "profile/learner_wait_seconds": round(fmean(part["waited"] for part in parts), 5),
            **({} if self.gate is None else self.gate.metrics()),
        }
        if self.take_state:
            threads = [part["threads"] for part in parts]
            self._state = {
                "spaces": self.spaces.to_dict(),
                "learner": copy.deepcopy(self.learner.state()),
                "counters": asdict(self.counters),
                "scaler": {key: value for key, value in self.scaler.state().items() if key != "returns"},
                "rng": {"torch": torch.get_rng_state()},
                "calibration": None if self.calibration is None else self.calibration.to_dict(),
                "begun": [node["begun"] for node in nodes],
                "replaced_actors": [node["replaced"] for node in nodes],
                "phase_seconds": self.phase_seconds,
                "remote": None if self.gate is None else self.gate.record(),
                "threads": threads + [count for node in nodes for count in node["actor_threads"]],
            }
        return sorted((episode for part in parts for episode in part["episodes"]), key=lambda each: each[:2])

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, with new episodes: unrolls that were not learned from are lost."""
        self.require_spaces(state)
        self.learner.load(state["learner"])
        self.counters = Counters(**state["counters"])
        self.calibration = self.calibration or Calibration.from_dict(state.get("calibration"))
        self.scaler.load({**state["scaler"], "returns": np.zeros_like(self.scaler.returns)})
        torch.set_rng_state(state["rng"]["torch"])
        self.timer.seconds.update(state["phase_seconds"][self.communicator.rank])
        self.wait_before = self.timer.seconds["wait"]
        if self.leads:
            node, actors = self.communicator.node_rank, self.store.size.actors
            self.batches.replaced = state["replaced_actors"][node]
            self.context.report_replaced(self.batches.replaced)
            begun = state["begun"][node][: self.store.size.writers]  # it may have had other seats
            self.store.begun[: len(begun)] = begun
            if self.gate is not None and state.get("remote") is not None:
                self.gate.load(state["remote"])
            saved = state["phase_seconds"][self.communicator.world_size + node * actors :][:actors]
            self.store.phases[:actors] = [[phases[phase] for phase in PHASES] for phases in saved]
            self.waits_before = self._actor_waits()

    def finish(self) -> Update | None:
        """Tell the actors that the last update is made."""
        self.close("completed")
        return None

    def close(self, status: str = "stopped") -> None:
        self.store.finished[0] = 1
        if self.gate is not None:
            self.gate.close(status)

    def process_names(self) -> list[str]:
        learners, config = list(self.communicator.names), self.config
        hosts = [name.split(" on ", 1)[1] for name in learners[:: self.communicator.local_size]]
        actors = [
            f"{config.process_name(config.num_learners + actor)} on {hosts[actor // config.actors_per_node]}"
            for actor in range(config.num_processes if learners else 0)
        ]
        return learners + actors or super().process_names()

    def metrics(self) -> dict[str, Any]:
        """Return the mean waiting times of learners and actors, the restarts and the calibration."""
        count = self.communicator.world_size
        learners, actors = self.phase_seconds[:count], self.phase_seconds[count:]
        # A learner that waits for its actors keeps other nodes waiting as much as one that learns.
        busy = [
            seconds["learn"] + (seconds["wait"] if rank % self.communicator.local_size == 0 else 0.0)
            for rank, seconds in enumerate(learners)
        ]
        return {
            **slowest_rank(self.communicator, busy),
            "impala": {
                "actors": len(actors),
                "learner_wait_seconds": round(fmean(each["wait"] for each in learners), 3),
                "learner_sync_seconds": round(fmean(each["sync"] for each in learners), 3),
                "actor_wait_seconds": round(fmean(each["wait"] for each in actors), 3),
                "actor_restarts": int(self.joint_metrics["impala/actor_restarts"] or 0),
                "calibration": None if self.calibration is None else self.calibration.to_dict(),
                **({} if self.gate is None else {"remote": self.gate.record()}),
            },
        }
