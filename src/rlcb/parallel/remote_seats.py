"""The seats of an IMPALA run: what actors of other machines do with the slots of the learner's machine.

An actor of another machine has a seat: a number after those of the local actors, with environments, seeds and
rows of the store (unroll_store.py) of its own. An actor that takes a used seat starts new episodes. The gate
(gate.py) does in the name of each seat what a local actor does by itself: it takes a free slot, reads the
newest parameters, stores the unroll, and queues the slot as full. So the learner sees no difference, and the
order of slots bounds the age of unrolls as before (unroll_batches.py).

A slot comes back when its actor leaves, and when the learner waits for it too long (`take_back`). An unroll
lies in memory of its seat until it is complete, so nobody writes to a slot that was taken back: the late
unroll is thrown away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlcb.config.config import Config
from rlcb.parallel.messages import UNROLL_ARRAYS
from rlcb.parallel.parameter_snapshot import ParameterSnapshot
from rlcb.parallel.remote_tally import RemoteTally
from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.unroll_store import UnrollStore
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.statistics import Episode

POLL_SECONDS = 0.1  # that a seat waits for a free slot before it lets another one wait
TURN_SECONDS = 1.0  # that a seat waits until it may wait for a free slot
MAX_REST_SECONDS = 60.0  # that an actor sits out after late unrolls


@dataclass(eq=False)
class Seat:
    """A connected actor of another machine."""

    actor: int
    """Its number in the store, after those of the local actors."""
    host: str
    unroll: RolloutBuffer
    """Where its unrolls [T, E, ...] arrive."""
    last_observations: NDArray[Any]
    """Where the observations [E, ...] after an unroll arrive."""
    slot: int | None = None
    """The slot that it was given last."""
    since: float = 0.0
    """When it was given that slot, in seconds of time.monotonic()."""
    version: int = -1
    """Of the parameters that it has."""
    fresh: bool = True
    """Whether its next unroll does not continue the last one that was stored."""
    seconds: float = 0.0
    """How long the arrays of its last unroll took to arrive and to be decompressed."""
    late_in_a_row: int = 0
    rest_until: float = 0.0
    """An actor that was late gets no slot before this time."""


class RemoteSeats:
    """The seats and the slots that their actors hold. Used by all threads of the first learner."""

    def __init__(
        self,
        config: Config,
        store: UnrollStore,
        snapshot: ParameterSnapshot,
        queues: tuple[SlotQueue, SlotQueue],
    ) -> None:
        self.config, self.store, self.snapshot = config, store, snapshot
        self.free, self.full = queues
        self.lock = threading.Lock()
        """Guards all that follows, and whoever puts slots back into the queue of free ones."""
        self.held: dict[int, Seat] = {}
        """Slots that actors of other machines are writing."""
        self.hosts: list[str | None] = [None] * store.size.slots
        """The host that wrote each slot last; None: this one."""
        self.tally = RemoteTally(store.size.actors)
        self._taken: dict[int, Seat] = {}
        self._newest: tuple[int, NDArray[np.float32]] = (-1, np.empty(0, np.float32))
        self._newest_lock, self._turn = threading.Lock(), threading.Lock()

    # --- For the learner ---------------------------------------------------------------------------------

    def take_back(self, waited_for: Sequence[int], patience: float) -> None:
        """Hand out again those slots `waited_for` that an actor of another machine has held for more than
        `patience` seconds. Does nothing while there are free slots: the other actors have work then."""
        if not self.held or not self.free.is_empty():
            return
        now = time.monotonic()
        with self.lock:
            for slot in waited_for:
                seat = self.held.get(slot)
                if seat is not None and now - seat.since > patience:
                    self._give_back(slot)

    def count_learned(self, slots: Sequence[int]) -> None:
        """Count the unrolls of a batch by the host that wrote them."""
        local = self.store.size.actors
        remote = [self.store.actor_of(slot) >= local for slot in slots]
        with self.lock:
            hosts = [self.hosts[slot] if other else None for slot, other in zip(slots, remote, strict=True)]
            self.tally.count_learned(hosts)

    # --- For the gate ------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """How many more actors can come."""
        return self.store.size.seats - len(self._taken)

    def take(self, host: str) -> Seat | None:
        """Give an actor the first seat that nobody has; None if there is none."""
        size = self.store.size
        with self.lock:
            for actor in range(size.actors, size.writers):
                if actor not in self._taken:
                    unroll = RolloutBuffer(size.n_steps, size.num_envs, size.spaces)
                    last = np.empty_like(self.store.last_observations[0])
                    self._taken[actor] = seat = Seat(actor, host, unroll, last)
                    return seat
        return None

    def leave(self, seat: Seat) -> None:
        """Give back a seat, and the slot that its actor was writing."""
        with self.lock:
            if seat.slot is not None and self.held.get(seat.slot) is seat:
                self._give_back(seat.slot)
            del self._taken[seat.actor]

    def first_env(self, seat: Seat) -> int:
        """Return the number of a seat's first environment in the run.

        Seats follow the environments of the learner's machine. Each begins a new group of environments, since
        a group shares a stream of levels.
        """
        config, number = self.config, seat.actor - self.store.size.actors
        groups_each = -(-config.envs_per_process // config.group_size)
        return config.env.num_envs + number * groups_each * config.group_size

    def claim(self, seat: Seat) -> int | None:
        """Take a free slot for a seat; None if none came for a moment. One seat waits at a time: threads that
        look often would slow down the learner."""
        if not self._turn.acquire(timeout=TURN_SECONDS):
            return None
        store = self.store
        store.claims[seat.actor] += 1  # odd: a slot may be taken that nobody owns yet
        try:
            slot = self.free.get(POLL_SECONDS)
            if slot is not None:
                store.owner[slot] = store.owner_id(seat.actor, 0)
        finally:
            store.claims[seat.actor] += 1
            self._turn.release()
        if slot is not None:
            with self.lock:
                self.held[slot], seat.slot, seat.since = seat, slot, time.monotonic()
        return slot

    def begin(self, seat: Seat, slot: int) -> tuple[int, NDArray[np.float32] | None]:
        """Begin a seat's next unroll; return its number, and the newest parameters (P,) unless the actor has
        them."""
        with self._newest_lock:
            if self.snapshot.version != self._newest[0]:
                parameters = torch.empty(self.snapshot.copies.shape[1])
                self._newest = self.snapshot.read(parameters), parameters.numpy()
            version, newest = self._newest
        store, number = self.store, int(self.store.begun[seat.actor])
        store.begun[seat.actor] += 1
        store.version[slot], store.number[slot], store.fresh[slot] = version, number, seat.fresh
        known, seat.version = version == seat.version, version
        return number, None if known else newest

    def store_unroll(self, seat: Seat, slot: int, phases: list[float], episodes: list[Episode]) -> None:
        """Store the unroll that has arrived in a seat and queue its slot as full, unless the slot was taken
        back meanwhile."""
        seconds = time.monotonic() - seat.since
        with self.lock:
            in_time = self.held.get(slot) is seat
            if in_time:
                del self.held[slot]
                self.hosts[slot] = seat.host
            else:
                self.tally.late += 1
        seat.fresh = not in_time
        if not in_time:
            rest = seconds * 2.0 ** min(seat.late_in_a_row, 10)
            seat.late_in_a_row += 1
            seat.rest_until = time.monotonic() + min(rest, MAX_REST_SECONDS)
            return
        seat.late_in_a_row = 0
        store, part = self.store, self.store.unroll(slot)
        for name in UNROLL_ARRAYS:
            getattr(part, name)[...] = getattr(seat.unroll, name)
        store.last_observations[slot] = seat.last_observations
        store.write_episodes(slot, episodes)
        store.seconds[slot] = seconds
        store.phases[seat.actor] = phases
        self.full.put(slot)

    def _give_back(self, slot: int) -> None:
        """Hand out a slot again, before all others. Needs the lock."""
        del self.held[slot]
        self.store.owner[slot] = 0
        self.free.put_first(slot)
