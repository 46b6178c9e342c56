"""An actor of IMPALA: steps its environments with the newest parameters and writes unroll after unroll.

T is training.n_steps, E the environments of this actor. An unroll is E columns of the store's time-major
rollout, from slot * E on: observations [T, E, ...], actions, rewards, log_probs, ... [T, E].
"""

from __future__ import annotations

import os
import time

import torch

from rlcb.errors import Interrupted
from rlcb.parallel.messages import RunEnded
from rlcb.parallel.parameter_snapshot import ParameterSnapshot
from rlcb.parallel.unroll_store import UnrollStore
from rlcb.parallel.unroll_writer import UnrollWriter
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.rl.timing import PHASES
from rlcb.training.profiler import maybe_profile
from rlcb.training.run_spec import RunSpec

POLL_SECONDS = 0.1  # between two looks whether the run still goes on, while waiting for a slot
TURN_SECONDS = 0.001  # between two looks at the other actors, while ahead of them


class Actor:
    """The environments of one actor process and its copy of the network."""

    def __init__(self, spec: RunSpec, context: SupervisedContext) -> None:
        """Make environments and network. Raises UsageError if the environments cannot be made."""
        config = self.config = spec.config
        self.context = context
        self.number = context.rank - config.learners_per_node
        """This actor's number on its node, from 0."""
        assert context.queues is not None
        self.free, self.full = context.queues
        node_rank = 0 if context.world is None else context.world.node_rank
        os.nice(config.impala.actor_nice)
        first_env = (node_rank * config.actors_per_node + self.number) * config.envs_per_process
        self.writer = UnrollWriter(config, first_env)
        self.spaces, self.num_parameters = self.writer.spaces, self.writer.num_parameters
        self.timer = self.writer.timer
        is_first = self.number == node_rank == context.generation == 0
        self.profile_unroll = maybe_profile(spec.trace_folder if is_first else None, "actor")

    def join(self, store: UnrollStore, snapshot: ParameterSnapshot) -> None:
        """Connect to the shared memory, which exists once the learner knows the spaces."""
        self.store, self.snapshot = store, snapshot
        self.writer.reset(self.heartbeat)
        store.claims[self.number] += store.claims[self.number] % 2  # the actor before may have died at odd
        store.threads[self.number] = torch.get_num_threads()

    def heartbeat(self) -> None:
        """Note progress; raise RunEnded, Interrupted or PeerLost if the run ends. Called at every step."""
        self.context.check()
        if self.store.finished[0]:
            raise RunEnded

    def act(self) -> None:
        """Write unroll after unroll until the run ends."""
        first = True
        try:
            while True:
                with self.timer("wait"), self.context.wait_for_others():
                    slot = self._take_slot()
                if first:
                    self._continue_from_predecessor()
                self._write_unroll(slot, first)
                self.full.put(slot)
                first = False
        except (RunEnded, Interrupted):
            self.writer.close()

    def _take_slot(self) -> int:
        """Wait for this actor's turn and then for a free slot; return its number.

        No actor gets more than `impala.max_policy_lag` unrolls ahead of the slowest of its node. So every
        environment contributes equally, and without lag every update has exactly one unroll of each actor.
        """
        begun = self.store.begun[: self.store.size.actors]
        while begun[self.number] - begun.min() > self.config.impala.max_policy_lag:
            self.heartbeat()
            time.sleep(TURN_SECONDS)
        while True:
            self.heartbeat()
            self.store.claims[self.number] += 1  # odd: a slot may be taken that nobody owns yet
            slot = self.free.get(POLL_SECONDS)
            if slot is not None:
                self.store.owner[slot] = self.store.owner_id(self.number, self.context.generation)
            self.store.claims[self.number] += 1
            if slot is not None:
                return slot

    def _write_unroll(self, slot: int, first: bool) -> None:
        """Write one unroll into a slot: T steps of E environments with the newest parameters."""
        store, number = self.store, int(self.store.begun[self.number])
        store.begun[self.number] += 1
        store.version[slot] = self.snapshot.read(
            self.writer.parameters
        )  # overwrites the network's parameters
        store.number[slot], store.fresh[slot] = number, first
        unroll = store.unroll(slot)  # observations [T, E, ...], the rest [T, E]
        start = time.monotonic()
        with self.profile_unroll():
            episodes = self.writer.write(unroll, number)
        store.seconds[slot] = time.monotonic() - start
        store.write_episodes(slot, episodes)
        store.last_observations[slot] = self.writer.collector.observations  # [E, ...], after the last step
        store.phases[self.number] = [self.timer.seconds[phase] for phase in PHASES]

    def _continue_from_predecessor(self) -> None:
        """Take over the phase times of the actor that this one follows, after a resume or a death, and start
        new episodes with a seed that the run has not used."""
        begun = int(self.store.begun[self.number])
        for phase, seconds in zip(PHASES, self.store.phases[self.number], strict=True):
            self.timer.seconds[phase] += float(seconds)
        if self.context.generation or begun:
            self.writer.restart(begun)
