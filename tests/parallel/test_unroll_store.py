"""The store of unrolls: slots are columns of one rollout, and what nobody wrote is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlcb.envs.spaces import Spaces
from rlcb.errors import RunError
from rlcb.parallel.unroll_store import StoreSize, UnrollStore, store_bytes
from rlcb.rl.statistics import Episode

VECTOR = Spaces((3,), "float32", 4)
IMAGE = Spaces((4, 5, 3), "uint8", 4)
SLOTS, ACTORS, STEPS, ENVS = 4, 2, 3, 2
GRID = ("actions", "log_probs", "values", "bootstrap_values", "rewards")


def make_store(spaces: Spaces = VECTOR) -> UnrollStore:
    size = StoreSize(SLOTS, ACTORS, STEPS, ENVS, spaces)
    return UnrollStore(size, bytearray(store_bytes(size)))


def write_unroll(store: UnrollStore, slot: int, seed: int = 0) -> None:
    """Everything that an actor writes."""
    rng = np.random.default_rng(seed)
    part = store.unroll(slot)
    for name in GRID:
        array = getattr(part, name)
        array[:] = rng.integers(0, 4, array.shape)
    for array in (part.observations, store.last_observations[slot]):
        array[:] = rng.integers(0, 256, array.shape)
    part.terminated[:], part.truncated[:] = rng.random((2, STEPS, ENVS)) < 0.3


@pytest.mark.parametrize("spaces", [VECTOR, IMAGE], ids=["vectors", "images"])
def test_a_slot_is_its_own_columns_of_one_rollout(spaces: Spaces) -> None:
    store = make_store(spaces)
    assert store.rollout.num_envs == SLOTS * ENVS
    for slot in range(SLOTS):
        part = store.unroll(slot)
        assert part.observations.shape == (STEPS, ENVS, *spaces.observation_shape)
        assert part.actions.shape == (STEPS, ENVS)
        part.actions[:] = slot
        part.observations[:] = slot
    columns = np.repeat(np.arange(SLOTS), ENVS)
    np.testing.assert_array_equal(store.rollout.actions, np.tile(columns, (STEPS, 1)))
    flat = store.rollout.observations.reshape(STEPS, SLOTS * ENVS, -1)
    assert (flat == columns[None, :, None]).all()


def test_columns_come_slot_after_slot_in_the_order_asked_for() -> None:
    store = make_store()
    np.testing.assert_array_equal(store.columns([2, 0]), [4, 5, 0, 1])
    np.testing.assert_array_equal(store.columns([3]), [6, 7])
    assert store.columns([]).shape == (0,)
    for slot in range(SLOTS):
        store.unroll(slot).rewards[:] = slot
    np.testing.assert_array_equal(store.rollout.rewards[0, store.columns([3, 1])], [3, 3, 1, 1])


def test_no_array_overlaps_another() -> None:
    """Each is filled with a number of its own; then all still have theirs."""
    store = make_store(IMAGE)
    arrays: list[Any] = [value for value in vars(store).values() if isinstance(value, np.ndarray)]
    arrays += [value for value in vars(store.rollout).values() if isinstance(value, np.ndarray)]
    assert len(arrays) > 20
    for number, array in enumerate(arrays):
        array[...] = number % 2 if array.dtype == np.bool_ else number
    for number, array in enumerate(arrays):
        assert (array == (number % 2 if array.dtype == np.bool_ else number)).all()


def test_two_views_of_one_memory_see_each_others_unrolls() -> None:
    size = StoreSize(SLOTS, ACTORS, STEPS, ENVS, VECTOR)
    memory = bytearray(store_bytes(size))
    actor, learner = UnrollStore(size, memory), UnrollStore(size, memory)
    write_unroll(actor, 2, seed=3)
    actor.version[2] = 17
    np.testing.assert_array_equal(learner.rollout.rewards[:, 4:6], actor.unroll(2).rewards)
    np.testing.assert_array_equal(learner.last_observations[2], actor.last_observations[2])
    assert learner.version[2] == 17


def test_the_actor_of_a_slot_is_known_whichever_incarnation_of_it_wrote() -> None:
    store = make_store()
    for generation in range(3):
        for actor in range(ACTORS):
            store.owner[1] = 1 + actor + ACTORS * generation
            assert store.actor_of(1) == actor


def test_episodes_come_back_as_they_were_written() -> None:
    store = make_store()
    episodes = [Episode(0, 7, -1.5, 12), Episode(2, 6, 1e6 + 0.125, 2**40)]
    store.write_episodes(1, episodes)
    assert store.read_episodes(1) == episodes
    assert store.read_episodes(0) == []
    assert all(isinstance(each.step, int) and isinstance(each.length, int) for each in store.read_episodes(1))
    store.write_episodes(1, [])
    assert store.read_episodes(1) == []


def test_there_is_room_for_an_episode_that_ends_in_every_step_of_every_environment() -> None:
    store = make_store()
    episodes = [Episode(t, env, float(t), 1) for t in range(STEPS) for env in range(ENVS)]
    store.write_episodes(0, episodes)
    store.write_episodes(1, episodes[:1])
    assert store.read_episodes(0) == episodes
    assert store.read_episodes(1) == episodes[:1]


@pytest.mark.parametrize("spaces", [VECTOR, IMAGE], ids=["vectors", "images"])
def test_an_unroll_that_was_written_over_the_absurd_values_is_accepted(spaces: Spaces) -> None:
    store = make_store(spaces)
    for slot in range(SLOTS):
        store.fill_with_sentinel(slot)
    write_unroll(store, 1)
    store.require_written(1)
    for slot in (0, 2, 3):
        with pytest.raises(RunError, match=f"slot {slot} has cells that its actor did not write"):
            store.require_written(slot)


@pytest.mark.parametrize("spaces", [VECTOR, IMAGE], ids=["vectors", "images"])
@pytest.mark.parametrize("name", [*GRID, "observations", "last_observations"])
@pytest.mark.parametrize("place", [0, -1])
def test_one_unwritten_cell_of_any_array_is_found(spaces: Spaces, name: str, place: int) -> None:
    store = make_store(spaces)
    store.fill_with_sentinel(2)
    array = store.last_observations[2] if name == "last_observations" else getattr(store.unroll(2), name)
    cell = (place,) * (1 if name == "last_observations" else 2)
    absurd = np.array(array[cell])
    write_unroll(store, 2)
    array[cell] = absurd
    with pytest.raises(RunError, match="slot 2"):
        store.require_written(2)


def test_filling_a_slot_leaves_the_others_alone() -> None:
    store = make_store()
    for slot in (0, 2):
        write_unroll(store, slot, seed=slot)
    store.fill_with_sentinel(1)
    for slot in (0, 2):
        store.require_written(slot)


def test_frames_may_hold_the_absurd_value_in_places() -> None:
    store = make_store(IMAGE)
    store.fill_with_sentinel(0)
    absurd = store.unroll(0).observations[0, 0, 0, 0, 0]
    write_unroll(store, 0)
    store.unroll(0).observations[:, :, 0] = absurd
    store.last_observations[0, :, 0] = absurd
    store.require_written(0)
