"""Who has which slot: unrolls are given out to actors and taken back, complete, in the same order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np

from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.unroll_store import UnrollStore
from rlcb.parallel.worker import Link

POLL_SECONDS = 0.1  # how often who waits for an unroll looks whether the run goes on
SETTLE_SECONDS = 0.05


class Batches:
    """The learner's side of the two queues.

    An unroll may be older than the parameters that learn from it by `impala.max_policy_lag` updates at most,
    and no bookkeeping enforces that: there are max_policy_lag + 1 batches of slots, learned from in the order
    in which they are given out. So a slot that is given out after update u belongs to update
    u + max_policy_lag + 1 at the latest.
    """

    def __init__(
        self,
        store: UnrollStore,
        queues: tuple[SlotQueue, ...],
        batch_size: int,
        link: Link,
        heartbeat: Callable[[], None],
        check_unwritten: bool,
    ) -> None:
        """`queues` are the one of slots that actors may take and the one of slots that they have written;
        `batch_size` counts unrolls."""
        self.store = store
        self.free, self.full = queues
        self.batch_size = batch_size
        self.link = link
        self.heartbeat = heartbeat
        self.check_unwritten = check_unwritten
        self.given: deque[int] = deque()
        """The slots that actors have or may take, in order."""
        self.complete: set[int] = set()
        """Those of them that are written."""
        self.generations = np.ones(store.size.actors, np.int64)
        self.replaced = 0
        """Actors that took the place of one that died."""

    def give_out(self, slots: Iterable[int]) -> None:
        """Let actors write these slots, which are learned from in this order."""
        for slot in slots:
            if self.check_unwritten:
                self.store.fill_with_sentinel(slot)
            self.store.owner[slot] = 0
            self.complete.discard(slot)
            self.given.append(slot)
            self.free.put(slot)

    def take(self) -> list[int]:
        """Wait until the slots that were given out first are written, a batch of them, and take them back.

        They come in the order of their actors, and those of one actor in the order of time.
        """
        with self.link.wait_for_others():
            while not all(slot in self.complete for slot in islice(self.given, self.batch_size)):
                self.heartbeat()
                self._reclaim()
                slot = self.full.get(POLL_SECONDS)
                if slot is not None:
                    self.complete.add(slot)
        if self.check_unwritten:
            for slot in islice(self.given, self.batch_size):
                self.store.require_written(slot)
        batch = [self.given.popleft() for _ in range(self.batch_size)]
        return sorted(batch, key=lambda slot: (self.store.number[slot], self.store.actor_of(slot)))

    def _reclaim(self) -> None:
        """Give out again what an actor had taken that died, and count it."""
        actors = self.store.size.actors
        now = np.array(self.link.heartbeats.generations[-actors:])
        if (now == self.generations).all():
            return
        self.replaced += int((now - self.generations).sum())
        self.generations = now
        self.complete.update(self.full.drain())  # what it wrote to the end counts
        queued = self.free.drain()
        self._settle()
        living = 1 + np.arange(actors) + actors * (now - 1)
        lost = [
            slot
            for slot in self.given
            if slot not in self.complete and slot not in queued and self.store.owner[slot] not in living
        ]
        for slot in [*lost, *queued]:  # in the order in which they are due
            self.store.owner[slot] = 0
            self.free.put(slot)

    def _settle(self) -> None:
        """Wait until every actor that may just have taken a slot has put its name to it."""
        before = self.store.claims.copy()
        while ((before % 2 == 1) & (self.store.claims == before)).any():
            self.heartbeat()
            time.sleep(SETTLE_SECONDS)
