"""Reward scaling against NumPy over the discounted returns written out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlcb.rl.communicator import Communicator
from rlcb.rl.reward_scaler import RewardScaler, SharedRewardScaler

GAMMA = 0.97
Rollouts = list[tuple[NDArray[np.float32], NDArray[np.bool_]]]


def random_rollouts(count: int, n_steps: int, num_envs: int, seed: int = 0) -> Rollouts:
    rng = np.random.default_rng(seed)
    return [
        (
            rng.normal(0.3, 2.0, (n_steps, num_envs)).astype(np.float32),
            rng.random((n_steps, num_envs)) < 0.15,
        )
        for _ in range(count)
    ]


def all_discounted_returns(rollouts: Rollouts, gamma: float) -> NDArray[np.float64]:
    """Each G_t as the sum over its episode's rewards so far, gamma^(t - k) r_k, time over all rollouts."""
    rewards = np.concatenate([each[0] for each in rollouts]).astype(np.float64)
    ended = np.concatenate([each[1] for each in rollouts])
    returns = np.zeros_like(rewards)
    for i in range(rewards.shape[1]):
        start = 0
        for t in range(len(rewards)):
            returns[t, i] = sum(gamma ** (t - k) * rewards[k, i] for k in range(start, t + 1))
            if ended[t, i]:
                start = t + 1
    return returns


def test_rewards_are_divided_by_the_standard_deviation_of_all_discounted_returns_so_far() -> None:
    rollouts = random_rollouts(4, 25, 3)
    scaler = RewardScaler(3, GAMMA, clip=1e9)
    for k, (rewards, ended) in enumerate(rollouts):
        raw = rewards.copy()
        scaled = scaler.scale(rewards, ended, Communicator())
        std = all_discounted_returns(rollouts[: k + 1], GAMMA).std()
        assert scaler.std == pytest.approx(std, rel=1e-9)
        assert scaled.dtype == np.float32 and scaled.shape == rewards.shape
        np.testing.assert_allclose(scaled, raw / std, rtol=1e-5)
        np.testing.assert_array_equal(rewards, raw)  # what was stored stays raw


def test_statistics_are_exact_for_returns_with_a_large_mean() -> None:
    rng = np.random.default_rng(1)
    scaler = RewardScaler(8, 0.0, clip=1e9)
    rollouts: Rollouts = [
        ((1e5 + rng.integers(-3, 4, (50, 8))).astype(np.float32), np.zeros((50, 8), np.bool_))
        for _ in range(20)
    ]
    for rewards, ended in rollouts:
        scaler.scale(rewards, ended, Communicator())
    expected = np.concatenate([rewards for rewards, _ in rollouts]).std(dtype=np.float64)
    assert scaler.std == pytest.approx(expected, rel=1e-6)


def test_discounted_returns_restart_after_an_episode() -> None:
    scaler, before = RewardScaler(2, 0.5, clip=10.0), np.array([4.0, -8.0])
    rewards = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    ended = np.array([[False, True], [False, False], [True, False]])
    # 0.5 * 4 + 1 = 3, 0.5 * 3 + 3 = 4.5, 0.5 * 4.5 + 5 = 7.25; 0.5 * -8 + 2 = -2, then 4, 0.5 * 4 + 6 = 8
    expected = [[3, -2], [4.5, 4], [7.25, 8]]
    np.testing.assert_array_equal(scaler.discount(rewards, ended, before), expected)
    np.testing.assert_array_equal(before, [0, 8])


def test_statistics_are_the_moments_of_all_discounted_returns() -> None:
    rollouts, scaler = random_rollouts(3, 20, 2), RewardScaler(2, GAMMA, clip=10.0)
    assert scaler.state() == {"count": 0.0, "mean": 0.0, "squared_deviations": 0.0, "returns": [0.0, 0.0]}
    for rewards, ended in rollouts:
        scaler.scale(rewards, ended, Communicator())
    returns = all_discounted_returns(rollouts, GAMMA)
    state = scaler.state()
    assert state["count"] == returns.size
    assert state["mean"] == pytest.approx(returns.mean(), rel=1e-9)
    assert state["squared_deviations"] == pytest.approx(returns.size * returns.var(), rel=1e-9)


def test_rewards_keep_their_size_before_the_first_statistics() -> None:
    scaler = RewardScaler(2, GAMMA, clip=10.0)
    assert scaler.std == 1
    np.testing.assert_allclose(scaler.scaled(np.array([[3, -4]], np.float32)), [[3, -4]], rtol=1e-6)


def test_returns_of_little_spread_are_scaled_up() -> None:
    rewards, always = np.array([[0.1], [-0.1]], np.float32), np.ones((2, 1), np.bool_)
    scaler = RewardScaler(1, GAMMA, clip=10.0)
    np.testing.assert_allclose(scaler.scale(rewards, always, Communicator()), [[1], [-1]], rtol=1e-6)
    assert scaler.std == pytest.approx(0.1, rel=1e-6)


def test_workers_with_shared_statistics_scale_by_the_returns_of_all_of_them() -> None:
    rollouts, statistics, held = random_rollouts(4, 20, 2), np.zeros(3), [0]

    @contextlib.contextmanager
    def locked() -> Iterator[None]:
        held[0] += 1
        yield

    workers = [SharedRewardScaler(2, GAMMA, 10.0, statistics, locked) for _ in range(2)]
    for index, (rewards, ended) in enumerate(rollouts):  # each worker has every other rollout
        workers[index % 2].scale(rewards, ended, Communicator())
    returns = np.stack([all_discounted_returns(rollouts[index::2], GAMMA) for index in range(2)])
    assert workers[1].std == pytest.approx(returns.std(), rel=1e-9)
    assert statistics[:2] == pytest.approx([returns.size, returns.mean()], rel=1e-9)
    assert held == [4]


def test_scaled_rewards_are_clipped_on_both_sides() -> None:
    rewards, ended = random_rollouts(1, 60, 2)[0]
    scaled = RewardScaler(2, GAMMA, clip=0.25).scale(rewards, ended, Communicator())
    assert scaled.max() == np.float32(0.25)
    assert scaled.min() == np.float32(-0.25)
    std = all_discounted_returns([(rewards, ended)], GAMMA).std()
    np.testing.assert_allclose(scaled, np.clip(rewards / std, -0.25, 0.25), rtol=1e-5)


def test_rewards_that_are_always_zero_stay_zero() -> None:
    zeros, never = np.zeros((10, 2), np.float32), np.zeros((10, 2), np.bool_)
    scaler = RewardScaler(2, GAMMA, clip=10.0)
    for _ in range(2):
        np.testing.assert_array_equal(scaler.scale(zeros, never, Communicator()), zeros)


def test_rewards_without_spread_stay_finite() -> None:
    ones, always = np.ones((10, 2), np.float32), np.ones((10, 2), np.bool_)  # every return is 1
    scaled = RewardScaler(2, GAMMA, clip=10.0).scale(ones, always, Communicator())
    np.testing.assert_array_equal(scaled, 10)  # 1 / (0 + 1e-8), clipped


def test_several_processes_have_the_statistics_of_a_single_process(
    run_ranks: Callable[[int, Callable[[Communicator], Any]], list[Any]],
) -> None:
    rollouts = random_rollouts(3, 20, 6)
    whole = RewardScaler(6, GAMMA, clip=10.0)
    expected = [whole.scale(rewards, ended, Communicator()) for rewards, ended in rollouts]

    def scale(communicator: Communicator) -> tuple[list[NDArray[np.float32]], float]:
        own = slice(3 * communicator.rank, 3 * communicator.rank + 3)
        scaler = RewardScaler(3, GAMMA, clip=10.0)
        return [
            scaler.scale(rewards[:, own], ended[:, own], communicator) for rewards, ended in rollouts
        ], scaler.std

    (left, left_std), (right, right_std) = run_ranks(2, scale)
    assert left_std == right_std == pytest.approx(whole.std, rel=1e-12)
    for k, together in enumerate(expected):
        np.testing.assert_allclose(np.concatenate([left[k], right[k]], axis=1), together, rtol=1e-6)


def test_a_scaler_that_loads_a_state_continues_like_the_saved_one() -> None:
    rollouts = random_rollouts(4, 10, 3)
    steady = RewardScaler(3, GAMMA, clip=10.0)
    for rewards, ended in rollouts[:2]:
        steady.scale(rewards, ended, Communicator())
    resumed = RewardScaler(3, GAMMA, clip=10.0)
    resumed.load(json.loads(json.dumps(steady.state())))
    for rewards, ended in rollouts[2:]:
        np.testing.assert_array_equal(
            resumed.scale(rewards, ended, Communicator()), steady.scale(rewards, ended, Communicator())
        )
    assert resumed.state() == steady.state()
