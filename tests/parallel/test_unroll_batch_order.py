"""In which order unrolls and their episodes are learned from and counted where an actor has several."""

from __future__ import annotations

from collections import Counter

import pytest

from rlcb.envs.spaces import Spaces
from rlcb.parallel.unroll_store import StoreSize, UnrollStore, store_bytes
from rlcb.rl.statistics import Episode
from tests.impala_team import N_STEPS, Team
from tests.parallel.test_unroll_batches import Side


def test_what_an_actor_that_died_had_taken_is_given_out_again_before_what_is_due_later() -> None:
    side = Side(6, 2)
    side.batches.give_out(range(6))
    side.take(0, 0)
    side.take(1, 1)
    side.take(0, 2)
    side.take(1, 3)
    side.die(1)
    side.batches._reclaim()
    assert side.free.drain() == [1, 3, 4, 5]


def test_the_second_unroll_of_an_actor_in_a_batch_comes_behind_its_first() -> None:
    size = StoreSize(4, 2, 3, 2, Spaces((3,), "float32", 4))
    store = UnrollStore(size, bytearray(store_bytes(size)))
    for slot, actor in ((2, 0), (3, 1), (0, 0)):
        store.owner[slot] = 1 + actor
    store.write_episodes(2, [Episode(2, 0, 1.0, 10)])
    store.write_episodes(3, [Episode(1, 2, 2.0, 4)])
    store.write_episodes(0, [Episode(0, 1, 3.0, 5), Episode(2, 0, 4.0, 3)])
    assert sorted(store.episodes_of([2, 3, 0])) == [
        Episode(1, 2, 2.0, 4),
        Episode(2, 0, 1.0, 10),
        Episode(3, 1, 3.0, 5),
        Episode(5, 0, 4.0, 3),
    ]


@pytest.mark.timeout(180)
def test_the_episodes_of_an_update_come_by_time_over_all_unrolls_of_its_batch() -> None:
    """An episode ends with every unroll; a batch has six unrolls of two actors with one environment each."""
    ours = Team(2, 1, envs_per_actor=1, batch_size=6)
    with ours.acting():
        seen = ours.learn(5)
    for each in seen:
        assert each.update is not None
        steps = [episode.step for episode in each.update.episodes]
        assert steps == sorted(steps)
        times = Counter(episode.env for episode in each.update.episodes)
        expected = [N_STEPS * (number + 1) - 1 for count in times.values() for number in range(count)]
        assert steps == sorted(expected)
        assert len(steps) == 6
