"""An actor of IMPALA: it steps its environments with the newest parameters, unroll after unroll."""

from __future__ import annotations

import os
import time

import torch

from rlcb import cpu, seeding
from rlcb.envs.spaces import Spaces
from rlcb.envs.vector_env import make_vector_env, native_threads, spaces_of
from rlcb.errors import Interrupted
from rlcb.parallel.parameter_snapshot import ParameterSnapshot
from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.unroll_store import UnrollStore
from rlcb.parallel.worker import Job, Link
from rlcb.rl.collector import Collector
from rlcb.rl.learner import flatten_parameters
from rlcb.rl.models import make_model
from rlcb.rl.timing import PHASES, PhaseTimer
from rlcb.training.profiler import maybe_profile

POLL_SECONDS = 0.1  # how often who waits for a slot looks whether the run goes on
TURN_SECONDS = 0.001  # how often an actor that is ahead of the others looks for them


class RunEnded(Exception):
    """All is learned that was to be learned."""


class Actor:
    """Environments and a copy of the network."""

    def __init__(self, job: Job, link: Link, number: int, node_rank: int) -> None:
        """Actor `number` of node `node_rank`. Raises UsageError if the environments cannot be made."""
        self.link = link
        config = self.config = job.spec.config
        self.number = number
        self.generation = link.generation
        self.env_index = (node_rank * config.actors_per_node + number) * config.envs_per_process
        self.timer = PhaseTimer()
        cpu.set_torch_threads(1)
        os.nice(config.impala.actor_nice)
        groups = config.envs_per_process // config.group_size
        first_group = self.env_index // config.group_size
        self.groups = range(first_group, first_group + groups)
        seed = config.training.seed
        seeds = [seeding.group_seed(seed, group) for group in self.groups]
        self.env = make_vector_env(config.env, seeds, config.group_size, native_threads(1))
        self.spaces: Spaces = spaces_of(self.env)
        self.model = make_model(config.model, self.spaces, seed)
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        is_first = number == node_rank == self.generation == 0
        self.profile_unroll = maybe_profile(job.spec.trace_folder if is_first else None, "actor")

    def join(self, store: UnrollStore, weights: ParameterSnapshot, queues: tuple[SlotQueue, ...]) -> None:
        """Take in what is shared, which exists once the learner knows the spaces."""
        self.store, self.weights, (self.free, self.full) = store, weights, queues
        self.parameters = flatten_parameters(self.model, torch.zeros(self.num_parameters))
        self.collector = Collector(
            self.env, self.model, self.config.training.seed, self.env_index, self.timer, self.heartbeat
        )
        self.store.claims[self.number] += self.store.claims[self.number] % 2  # one before it may have died
        self.store.threads[self.number] = torch.get_num_threads()

    def heartbeat(self) -> None:
        self.link.check()
        if self.store.finished[0]:
            raise RunEnded

    def act(self) -> None:
        """Write unroll after unroll until the run ends."""
        fresh = True
        try:
            while True:
                with self.timer("wait"), self.link.wait_for_others():
                    slot = self._take_slot()
                if fresh:
                    self._begin_anew()
                self._write(slot, fresh)
                self.full.put(slot)
                fresh = False
        except (RunEnded, Interrupted):
            self.env.close()

    def _begin_anew(self) -> None:
        """Begin new episodes where the run has used these environments' first streams already, and go on
        counting the time from there."""
        begun = int(self.store.begun[self.number])
        for phase, seconds in zip(PHASES, self.store.phases[self.number], strict=True):
            self.timer.seconds[phase] += float(seconds)
        if self.generation or begun:
            seed = self.config.training.seed
            self.collector.observations = self.env.restart(
                [seeding.restart_seed(seed, group, begun) for group in self.groups]
            )

    def _take_slot(self) -> int:
        """Wait for a slot, and for this actor's turn: no one gets further ahead than the policy may lag.

        So every environment has the same share of what is learned, and without lag exactly one unroll of
        each actor belongs to every update.
        """
        begun = self.store.begun
        while begun[self.number] - begun.min() > self.config.impala.max_policy_lag:
            self.heartbeat()
            time.sleep(TURN_SECONDS)
        while True:
            self.heartbeat()
            self.store.claims[self.number] += 1
            slot = self.free.get(POLL_SECONDS)
            if slot is not None:
                self.store.owner[slot] = 1 + self.number + self.store.size.actors * self.generation
            self.store.claims[self.number] += 1
            if slot is not None:
                return slot

    def _write(self, slot: int, fresh: bool) -> None:
        store, number = self.store, int(self.store.begun[self.number])
        store.begun[self.number] += 1
        store.version[slot] = self.weights.read(self.parameters)
        store.number[slot], store.fresh[slot] = number, fresh
        with self.profile_unroll():
            episodes = self.collector.collect(store.unroll(slot), number)
        store.write_episodes(slot, episodes)
        store.last_observations[slot] = self.collector.observations
        store.phases[self.number] = [self.timer.seconds[phase] for phase in PHASES]
