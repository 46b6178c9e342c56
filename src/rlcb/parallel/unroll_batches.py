"""Hand out slots to actors, and take the written unrolls back as batches, in the same order."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np

from rlcb.parallel.remote_seats import RemoteSeats
from rlcb.parallel.unroll_store import UnrollStore
from rlcb.parallel.worker_context import SupervisedContext

POLL_SECONDS = 0.1  # between two looks whether the run still goes on, while waiting for an unroll
SETTLE_SECONDS = 0.05  # between two looks whether actors have said which slot they took
# An actor of another machine may hold a slot that the learner waits for until PATIENCE median times of an
# unroll have passed, and at least LEAST_PATIENCE_SECONDS.
PATIENCE, LEAST_PATIENCE_SECONDS = 3.0, 0.2


class Batches:
    """The learner's side of the two queues of slots. Used by the first learner of a node.

    An unroll may be at most `impala.max_policy_lag` updates older than the parameters that learn from it. No
    bookkeeping enforces that: there are max_policy_lag + 1 batches of slots, and they are learned from in the
    order in which they were handed out. So a slot handed out after update u belongs to update
    u + max_policy_lag + 1 at the latest.
    """

    def __init__(
        self,
        store: UnrollStore,
        context: SupervisedContext,
        heartbeat: Callable[[], None],
        batch_size: int,
        check_unwritten: bool,
        seats: RemoteSeats | None = None,
    ) -> None:
        """`batch_size` counts unrolls. `heartbeat` is called while waiting; what it raises ends the wait.
        With `check_unwritten`, a cell that an actor did not write is an error. Actors of other machines
        take slots through `seats`, if the run accepts any."""
        assert context.queues is not None
        self.store = store
        self.context = context
        self.free, self.full = context.queues
        self.heartbeat = heartbeat
        self.batch_size = batch_size
        self.check_unwritten = check_unwritten
        self.seats = seats
        self.seconds: deque[float] = deque(maxlen=100)
        """The times that the newest unrolls took to write."""
        self.given: deque[int] = deque()
        """Slots that are handed out, oldest first."""
        self.complete: set[int] = set()
        """Slots of `given` that are written."""
        self.generations = np.ones(store.size.actors, np.int64)
        """The number of processes of each actor so far: above 1 if it was replaced."""
        self.replaced = 0
        """Actors that replaced one that died."""

    def give_out(self, slots: Iterable[int]) -> None:
        """Hand out slots for actors to write. The learner takes them back in this order."""
        for slot in slots:
            if self.check_unwritten:
                self.store.fill_with_sentinel(slot)
            self.store.owner[slot] = 0
            self.complete.discard(slot)
            self.given.append(slot)
            self.free.put(slot)

    def take(self) -> list[int]:
        """Wait until the oldest `batch_size` slots are written; take them back and return them.

        They are sorted by time and then by actor. Raises RunError if a cell was not written (see __init__).
        """
        with self.context.wait_for_others():
            while not all(slot in self.complete for slot in islice(self.given, self.batch_size)):
                self.heartbeat()
                self._reclaim()
                self._take_back()
                slot = self.full.get(POLL_SECONDS)
                if slot is not None:
                    self._complete([slot])
        if self.check_unwritten:
            for slot in islice(self.given, self.batch_size):
                self.store.require_written(slot)
        batch = [self.given.popleft() for _ in range(self.batch_size)]
        return sorted(batch, key=lambda slot: (self.store.number[slot], self.store.actor_of(slot)))

    def _complete(self, slots: Iterable[int]) -> None:
        """Note that unrolls are written."""
        for slot in slots:
            self.complete.add(slot)
            self.seconds.append(float(self.store.seconds[slot]))

    def _take_back(self) -> None:
        """Hand out again the slots of this batch that actors of other machines hold too long."""
        if self.seats is None or not self.seconds:
            return
        patience = max(LEAST_PATIENCE_SECONDS, PATIENCE * statistics.median(self.seconds))
        missing = [slot for slot in islice(self.given, self.batch_size) if slot not in self.complete]
        self.seats.take_back(missing, patience)

    def _reclaim(self) -> None:
        """After an actor of this node died: count it, and hand out again the slots that it had taken."""
        size = self.store.size
        now = np.array(self.context.heartbeats.generations[-size.actors :])
        if (now == self.generations).all():
            return
        self.replaced += int((now - self.generations).sum())
        self.generations = now
        with (
            contextlib.nullcontext() if self.seats is None else self.seats.lock
        ):  # it puts back slots as well
            self._complete(self.full.drain())  # an unroll that it completed counts
            queued = self.free.drain()
            self._settle()
            generations = np.concatenate([now - 1, np.zeros(size.seats, np.int64)])  # the gate watches seats
            living = self.store.owner_id(np.arange(size.writers), generations)
            lost = [
                slot
                for slot in self.given
                if slot not in self.complete and slot not in queued and self.store.owner[slot] not in living
            ]
            for slot in [*lost, *queued]:  # the oldest first
                self.store.owner[slot] = 0
                self.free.put(slot)

    def _settle(self) -> None:
        """Wait until every actor that may just have taken a slot has written its name to it."""
        before = self.store.claims.copy()
        while ((before % 2 == 1) & (self.store.claims == before)).any():
            self.heartbeat()
            time.sleep(SETTLE_SECONDS)
