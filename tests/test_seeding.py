"""Random streams: each has one purpose, and none depends on how the work is split."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlcb import seeding


@pytest.mark.parametrize("split", [[8], [4, 4], [1] * 8, [5, 3]])
def test_an_environment_draws_the_same_actions_however_environments_are_split(split: list[int]) -> None:
    whole = seeding.action_noise(seed=3, update=17, first_env=0, num_envs=8, n_steps=12)
    starts = [0, *itertools.accumulate(split)]
    parts = [
        seeding.action_noise(3, 17, start, count, 12) for start, count in zip(starts, split, strict=False)
    ]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_a_longer_rollout_begins_with_the_draws_of_a_shorter_one() -> None:
    np.testing.assert_array_equal(
        seeding.action_noise(1, 2, 0, 3, 20)[:5], seeding.action_noise(1, 2, 0, 3, 5)
    )


def test_action_noise_is_uniform_between_zero_and_one() -> None:
    noise = seeding.action_noise(0, 0, 0, 100, 1000)
    assert noise.shape == (1000, 100)
    assert noise.min() >= 0 and noise.max() < 1
    counts = np.histogram(noise, bins=20, range=(0, 1))[0]
    expected = noise.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


def test_a_group_has_the_seed_that_spawning_gives_it() -> None:
    for group, spawned in enumerate(np.random.SeedSequence(5).spawn(6)):
        np.testing.assert_array_equal(
            seeding.group_seed(5, group).generate_state(4), spawned.generate_state(4)
        )


def test_no_two_streams_of_any_purpose_group_update_or_seed_draw_the_same() -> None:
    numbers = range(5)
    keys = []
    for seed in (0, 1, 2**40):
        keys += [seeding.group_seed(seed, group) for group in numbers]
        keys += [seeding.restart_seed(seed, group, update) for group in numbers for update in numbers]
        keys += [seeding.evaluation_seed(seed, group, split) for group in numbers for split in numbers]
    # One generator on all of them, so that equal keys would show as equal draws.
    draws = [np.random.Generator(np.random.SFC64(key)).random(4) for key in keys]
    orders = [np.random.Generator(np.random.SFC64(key)).permutation(50) for key in keys]
    for seed in (0, 1, 2**40):
        for update in numbers:
            draws += list(seeding.action_noise(seed, update, 0, 5, 4).T)
            orders += [seeding.minibatch_permutation(seed, update, epoch, 50) for epoch in numbers]
        for split, env in itertools.product(numbers, numbers):
            draws.append(seeding.evaluation_actions(seed, split, env).random(4))
            orders.append(seeding.evaluation_actions(seed, split, env).permutation(50))
    # A permutation drawn from the stream of some action noise would be one of these.
    for seed, update, env in itertools.product((0, 1, 2**40), numbers, numbers):
        stream = np.random.SeedSequence(seed, spawn_key=(1, update, env))
        noise = np.random.Generator(np.random.SFC64(stream))
        np.testing.assert_array_equal(noise.random(4), seeding.action_noise(seed, update, env, 1, 4)[:, 0])
        orders.append(np.random.Generator(np.random.SFC64(stream)).permutation(50))
    assert len({tuple(each) for each in draws}) == len(draws)
    assert len({tuple(each) for each in orders}) == len(orders)


def test_environments_of_different_groups_and_runs_have_different_seeds_of_31_bits() -> None:
    seeds = [
        number
        for seed in range(20)
        for group in range(8)
        for number in seeding.environment_seeds(seeding.group_seed(seed, group), 8)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(type(each) is int and 0 <= each < 2**31 for each in seeds)


def test_seeds_of_a_group_do_not_depend_on_how_many_are_asked_for() -> None:
    group = seeding.group_seed(7, 2)
    assert seeding.environment_seeds(group, 8)[:3] == seeding.environment_seeds(group, 3)


@pytest.mark.parametrize("size", [1, 2, 100, 4096])
def test_a_permutation_visits_every_sample_once(size: int) -> None:
    order = seeding.minibatch_permutation(0, 0, 0, size)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_epochs_updates_and_seeds_shuffle_differently_and_repeatably() -> None:
    orders = [
        tuple(seeding.minibatch_permutation(seed, update, epoch, 64))
        for seed in range(3)
        for update in range(4)
        for epoch in range(4)
    ]
    assert len(set(orders)) == len(orders)
    assert orders[0] == tuple(seeding.minibatch_permutation(0, 0, 0, 64))


def test_drawing_leaves_the_global_generator_untouched() -> None:
    before = np.random.get_state()  # noqa: NPY002
    seeding.action_noise(0, 0, 0, 2, 3)
    seeding.minibatch_permutation(0, 0, 0, 9)
    seeding.environment_seeds(seeding.group_seed(0, 0), 2)
    np.testing.assert_equal(np.random.get_state(), before)  # noqa: NPY002
