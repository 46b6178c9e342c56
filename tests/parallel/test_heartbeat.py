"""Who makes no progress is known, and who has just stopped waiting is not taken for one who hangs."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from rlcb.cluster.watchdog import Watchdog
from rlcb.parallel.heartbeat import START_SECONDS, Heartbeats
from rlcb.parallel.world import World
from rlcb.training.worker_context import WorkerContext

CONTEXT = multiprocessing.get_context("spawn")


@pytest.fixture
def heartbeats() -> Heartbeats:
    """Three workers: the first has worked until a minute ago, the second waits since then, the third has not
    yet begun."""
    made, ago = Heartbeats(CONTEXT, 3), time.monotonic() - 60
    for rank in range(3):
        made.begin(rank)
        made.started[rank] = ago
    made.beats[0] = made.beats[1] = ago
    made.waiting[1] = 1
    return made


def test_who_neither_works_nor_waits_hangs(heartbeats: Heartbeats) -> None:
    assert heartbeats.hanging(50) == [0]
    assert heartbeats.hanging(70) == []
    heartbeats.started[2] -= START_SECONDS
    assert heartbeats.hanging(50) == [0, 2]


def test_a_time_in_which_no_worker_could_run_is_not_held_against_any(heartbeats: Heartbeats) -> None:
    heartbeats.started[2] -= START_SECONDS - 50
    heartbeats.discount_suspension(0.0)
    assert heartbeats.hanging(50) == [0, 2]
    heartbeats.discount_suspension(20.0)
    assert heartbeats.hanging(50) == []
    assert heartbeats.hanging(30) == [0]  # for 40 s it could have worked
    assert heartbeats.beats[2] == 0  # which has still not begun


def test_a_worker_that_has_made_a_step_since_then_is_not_ahead_of_the_time(heartbeats: Heartbeats) -> None:
    heartbeats.check(0)
    heartbeats.discount_suspension(20.0)
    assert heartbeats.beats[0] <= time.monotonic()


class Beats(list[float]):
    """Those of a worker that stops waiting just when they have been read."""

    heartbeats: Heartbeats

    def __iter__(self) -> Iterator[float]:
        before = list(self[:])
        self[0], self.heartbeats.waiting[0] = time.monotonic(), 0
        return iter(before)


def test_who_stops_waiting_while_it_is_looked_at_does_not_hang() -> None:
    heartbeats, ago = Heartbeats(CONTEXT, 1), time.monotonic() - 60
    beats = Beats([ago])
    beats.heartbeats, heartbeats.beats = heartbeats, beats
    heartbeats.waiting[0] = 1
    assert heartbeats.hanging(50) == []
    assert heartbeats.beats[0] > ago


def test_a_rank_notes_its_progress_before_it_is_seen_to_wait_no_more() -> None:
    seen: list[Any] = []

    class Noting(Watchdog):
        @property
        def waits(self) -> int:
            return self.count

        @waits.setter
        def waits(self, count: int) -> None:
            if count < getattr(self, "count", 0):
                seen.append(self.progress)
            self.count = count

    world = World(
        "hand", num_nodes=1, node_rank=0, num_workers=1, local_rank=0, master_addr="", master_port=1
    )
    store = HashStore()
    watch = Noting(lambda: store, world, ["rank 0"], 1000.0, WorkerContext())
    watch._closed.set()
    ago = time.monotonic() - 60
    watch.progress = ago
    with watch.waiting():
        pass
    assert len(seen) == 1
    assert seen[0] > ago
