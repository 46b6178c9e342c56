"""Slots are learned from in the order in which they are given out, and those of a dead actor come back."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any

import numpy as np
import pytest

from rlcb.envs.spaces import Spaces
from rlcb.errors import Interrupted, RunError
from rlcb.parallel.heartbeat import Heartbeats
from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.unroll_batches import Batches
from rlcb.parallel.unroll_store import StoreSize, UnrollStore, store_bytes
from rlcb.parallel.worker_context import SupervisedContext
from tests import runs

CONTEXT = multiprocessing.get_context("spawn")
ACTORS, LEARNERS = 2, 1


class Side:
    """The learner's batches, and what actors would do to the other ends."""

    def __init__(self, slots: int, batch_size: int, check_unwritten: bool = False) -> None:
        size = StoreSize(slots, ACTORS, 3, 1, Spaces((2,), "float32", 4))
        self.store = UnrollStore(size, bytearray(store_bytes(size)))
        self.free, self.full = (SlotQueue(CONTEXT.Pipe(duplex=False)) for _ in range(2))
        self.heartbeats = Heartbeats(CONTEXT, LEARNERS + ACTORS)
        for rank in range(LEARNERS + ACTORS):
            self.heartbeats.begin(rank)
        connection: Any = None
        queues = self.free, self.full
        context = SupervisedContext(
            connection=connection, rank=0, generation=0, heartbeats=self.heartbeats, queues=queues
        )
        self.batches = Batches(self.store, context, context.check, batch_size, check_unwritten)

    def take(self, actor: int, slot: int | None = None) -> int:
        """An actor takes the next slot and puts its name to it, with its claim odd meanwhile, as
        src/rlcb/parallel/impala_actor.py does."""
        generation = int(self.heartbeats.generations[LEARNERS + actor]) - 1
        deadline = time.monotonic() + 20
        taken: int | None = None
        while taken is None:
            assert time.monotonic() < deadline, "no slot was given out"
            self.store.claims[actor] += 1
            taken = self.free.get(0.1)
            if taken is not None:
                self.store.owner[taken] = 1 + actor + ACTORS * generation
            self.store.claims[actor] += 1
        assert slot in (None, taken)
        self.store.number[taken] = self.store.begun[actor]
        self.store.begun[actor] += 1
        return taken

    def complete(self, slot: int) -> None:
        part = self.store.unroll(slot)
        for array in (part.observations, part.actions, part.log_probs, part.values, part.rewards):
            array[:] = 0
        part.bootstrap_values[:] = 0
        self.store.last_observations[slot] = 0
        self.full.put(slot)

    def die(self, actor: int) -> None:
        """It is replaced by another, as src/rlcb/parallel/supervisor.py does."""
        self.heartbeats.begin(LEARNERS + actor)


def test_slots_are_given_out_in_order() -> None:
    side = Side(4, 2)
    side.batches.give_out([2, 0, 3, 1])
    assert side.free.drain() == [2, 0, 3, 1]


@pytest.mark.timeout(120)
def test_batches_are_the_slots_given_out_first_whichever_are_complete_first() -> None:
    side = Side(6, 2)
    side.batches.give_out(range(6))
    for actor in (0, 1, 0, 1, 0, 1):
        side.take(actor)
    for slot in (5, 4, 3, 1):
        side.complete(slot)
    taker = threading.Thread(target=lambda: taken.append(side.batches.take()), daemon=True)
    taken: list[list[int]] = []
    taker.start()
    taker.join(0.3)
    assert taken == []  # four are there, but not the first
    side.complete(0)
    taker.join(30)
    assert taken == [[0, 1]]
    side.complete(2)
    assert side.batches.take() == [2, 3]
    assert side.batches.take() == [4, 5]


@pytest.mark.timeout(120)
def test_a_batch_comes_by_time_and_then_by_actor() -> None:
    side = Side(4, 4)
    side.batches.give_out(range(4))
    for actor in (1, 0, 0, 1):  # slots 0 to 3
        side.complete(side.take(actor))
    assert side.batches.take() == [1, 0, 2, 3]


@pytest.mark.timeout(120)
def test_a_slot_is_used_again_only_after_it_was_given_out_again_and_behind_the_others() -> None:
    side = Side(4, 2)
    side.batches.give_out(range(4))
    for _ in range(2):
        side.complete(side.take(0))
    first = side.batches.take()
    assert side.free.drain() == [2, 3]
    side.batches.give_out(first)
    assert side.free.drain() == [0, 1]
    for slot in (0, 1, 2, 3):
        side.store.owner[slot], side.store.number[slot] = 1, 10 + slot
        side.complete(slot)
    assert side.batches.take() == [2, 3]
    assert side.batches.take() == [0, 1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("moment", ["before it said so", "while it wrote"])
def test_the_slot_of_an_actor_that_died_is_given_out_again(moment: str) -> None:
    side = Side(4, 2)
    side.batches.give_out(range(4))
    side.take(0, 0)
    side.take(1, 1)
    if moment == "before it said so":
        side.store.owner[1] = 0
    side.complete(0)
    side.die(1)
    taken: list[list[int]] = []
    taker = threading.Thread(target=lambda: taken.append(side.batches.take()), daemon=True)
    taker.start()
    again = [side.take(0) for _ in range(3)]
    assert sorted(again) == [1, 2, 3]  # nothing is lost, nothing is there twice
    assert taken == []
    side.complete(1)
    taker.join(30)
    assert sorted(taken[0]) == [0, 1]
    assert side.batches.replaced == 1
    assert side.free.drain() == []


@pytest.mark.timeout(120)
def test_what_a_dead_actor_had_completed_counts() -> None:
    side = Side(3, 3)
    side.batches.give_out(range(3))
    side.complete(side.take(1))
    side.complete(side.take(1))
    side.take(1)
    side.die(1)
    taken: list[list[int]] = []
    taker = threading.Thread(target=lambda: taken.append(side.batches.take()), daemon=True)
    taker.start()
    side.take(0, 2)
    side.complete(2)
    taker.join(30)
    assert sorted(taken[0]) == [0, 1, 2]


@pytest.mark.timeout(120)
def test_slots_of_living_actors_are_left_to_them_when_another_dies() -> None:
    side = Side(3, 3)
    side.batches.give_out(range(3))
    side.take(0, 0)
    side.take(1, 1)
    side.die(1)
    taken: list[list[int]] = []
    taker = threading.Thread(target=lambda: taken.append(side.batches.take()), daemon=True)
    taker.start()
    assert sorted([side.take(1), side.take(1)]) == [1, 2]  # the new actor 1: not slot 0
    for slot in (0, 1, 2):
        side.complete(slot)
    taker.join(30)
    assert sorted(taken[0]) == [0, 1, 2]


@pytest.mark.timeout(120)
def test_slots_come_back_from_as_many_deaths_as_there_are() -> None:
    side = Side(2, 2)
    side.batches.give_out(range(2))
    taken: list[list[int]] = []
    taker = threading.Thread(target=lambda: taken.append(side.batches.take()), daemon=True)
    taker.start()
    side.take(0)
    side.take(1)
    for _ in range(2):
        side.die(1)
        side.take(1, 1)
    side.die(0)
    side.take(0, 0)
    side.complete(0)
    side.complete(1)
    taker.join(30)
    assert sorted(taken[0]) == [0, 1]
    assert side.batches.replaced == 3


@pytest.mark.timeout(120)
def test_an_actor_that_may_just_have_taken_a_slot_is_waited_for() -> None:
    side = Side(2, 2)
    side.batches.give_out(range(2))
    side.take(1)
    side.store.claims[0] = 1  # actor 0 is between the queue and saying so
    slot = side.free.get(1.0)
    side.die(1)
    taken: list[list[int]] = []
    taker = threading.Thread(target=lambda: taken.append(side.batches.take()), daemon=True)
    taker.start()
    assert side.free.get(0.5) is None  # nothing is given out while it is not known whose slot that is
    assert slot == 1
    side.store.owner[slot], side.store.claims[0] = 1, 2
    side.take(1, 0)
    assert side.free.get(0.3) is None
    side.complete(0)
    side.complete(1)
    taker.join(30)
    assert sorted(taken[0]) == [0, 1]


@pytest.mark.timeout(120)
def test_waiting_for_a_batch_ends_with_the_run() -> None:
    side = Side(2, 2)
    side.batches.give_out(range(2))
    side.heartbeats.stop.value = 2
    with pytest.raises(Interrupted):
        side.batches.take()
    assert side.heartbeats.waiting[0] == 0


@pytest.mark.timeout(120)
def test_who_waits_for_a_batch_is_known_to_wait() -> None:
    side = Side(2, 2)
    side.batches.give_out(range(2))
    taker = threading.Thread(target=side.batches.take, daemon=True)
    taker.start()
    runs.wait_until(lambda: bool(side.heartbeats.waiting[0]))
    for actor in (0, 1):
        side.complete(side.take(actor))
    taker.join(30)
    assert side.heartbeats.waiting[0] == 0


@pytest.mark.timeout(120)
def test_an_unwritten_cell_is_an_error_where_that_is_checked() -> None:
    for checked in (True, False):
        side = Side(2, 2, checked)
        side.batches.give_out(range(2))
        for actor in (0, 1):
            side.complete(side.take(actor))
        cells = side.store.unroll(1).rewards
        if checked:
            assert np.isfinite(cells).all()
            cells[2] = np.nan  # as give_out filled it
            with pytest.raises(RunError, match="slot 1 has cells that its actor did not write"):
                side.batches.take()
        else:
            assert side.batches.take() == [0, 1]


@pytest.mark.timeout(120)
def test_slots_are_filled_with_absurd_values_again_every_time_they_are_given_out() -> None:
    side = Side(2, 1, check_unwritten=True)
    side.batches.give_out(range(2))
    side.complete(side.take(0))
    assert side.batches.take() == [0]
    side.batches.give_out([0])
    assert np.isnan(side.store.unroll(0).rewards).all()
