"""Generalised advantages against known answers, against the double sum, and against plain discounted sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlcb.rl.gae import generalised_advantages


def column(*numbers: float) -> NDArray[np.float32]:
    """A rollout (T, 1) of one environment."""
    return np.array(numbers, np.float32)[:, None]


def flags(length: int, *positions: int) -> NDArray[np.bool_]:
    marked = np.zeros((length, 1), np.bool_)
    marked[list(positions)] = True
    return marked


def double_sum(
    rewards: NDArray[Any],
    values: NDArray[Any],
    next_values: NDArray[Any],
    terminated: NDArray[Any],
    truncated: NDArray[Any],
    gamma: float,
    gae_lambda: float,
) -> NDArray[np.float64]:
    """A_t as the sum over l of (gamma lambda)^l delta_{t+l}, to the end of the episode or of the rollout."""
    steps, envs = rewards.shape
    advantages = np.zeros((steps, envs))
    for i in range(envs):
        for t in range(steps):
            for k in range(t, steps):
                future = 0.0 if terminated[k, i] else gamma * float(next_values[k, i])
                delta = float(rewards[k, i]) + future - float(values[k, i])
                advantages[t, i] += (gamma * gae_lambda) ** (k - t) * delta
                if terminated[k, i] or truncated[k, i]:
                    break
    return advantages


def test_known_answer_with_a_termination_inside() -> None:
    halves = column(0.5, 0.5, 0.5, 0.5)
    advantages, returns = generalised_advantages(
        column(1, 1, 1, 1), halves, halves, flags(4, 1), flags(4), gamma=0.9, gae_lambda=0.8
    )
    np.testing.assert_allclose(advantages[:, 0], [1.31, 0.5, 1.634, 0.95], rtol=1e-6)
    np.testing.assert_allclose(returns[:, 0], [1.81, 1.0, 2.134, 1.45], rtol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (flags(3), flags(3, 1), [4.819, -0.1, 7.7]),
        (flags(3, 1), flags(3), [4.09, -1.0, 7.7]),
        (flags(3, 1), flags(3, 1), [4.09, -1.0, 7.7]),
    ],
    ids=["truncated", "terminated", "both flags are a termination"],
)
def test_known_answer_at_the_end_of_an_episode(
    terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], expected: list[float]
) -> None:
    advantages, _ = generalised_advantages(
        column(5, 0, 7), column(1, 1, 2), column(1, 1, 3), terminated, truncated, gamma=0.9, gae_lambda=0.9
    )
    np.testing.assert_allclose(advantages[:, 0], expected, rtol=1e-5)


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    envs=st.integers(1, 4),
    end_rate=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 0.999, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_advantages_equal_the_double_sum_over_temporal_differences(
    seed: int, steps: int, envs: int, end_rate: float, gamma: float, gae_lambda: float
) -> None:
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, steps, envs)).astype(np.float32)
    terminated, truncated = rng.random((2, steps, envs)) < end_rate
    arguments = (rewards, values, next_values, terminated, truncated, gamma, gae_lambda)
    advantages, returns = generalised_advantages(*arguments)
    expected = double_sum(*arguments)
    assert advantages.shape == returns.shape == (steps, envs)
    assert advantages.dtype == returns.dtype == np.float32
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(returns, expected + values, rtol=1e-4, atol=1e-5)


def test_lambda_one_gives_the_discounted_sum_of_rewards_for_any_values() -> None:
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=(2, 6, 1)).astype(np.float32)
    next_values = np.concatenate([values[1:], column(2.0)])  # consistent: the true successors' values
    _, returns = generalised_advantages(rewards, values, next_values, flags(6), flags(6), 0.9, 1.0)
    for t in range(6):
        tail = sum(0.9**k * float(rewards[t + k, 0]) for k in range(6 - t)) + 0.9 ** (6 - t) * 2.0
        assert returns[t, 0] == pytest.approx(tail, rel=1e-5)


def test_environments_are_independent_and_inputs_are_not_modified() -> None:
    rng = np.random.default_rng(4)
    rewards, values, next_values = rng.normal(size=(3, 5, 3)).astype(np.float32)
    terminated, truncated = rng.random((2, 5, 3)) < 0.3
    arrays = (rewards, values, next_values, terminated, truncated)
    copies = [array.copy() for array in arrays]
    together, _ = generalised_advantages(*arrays, gamma=0.9, gae_lambda=0.95)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    for i in range(3):
        columns: list[Any] = [*(array[:, i : i + 1] for array in arrays), 0.9, 0.95]
        alone, _ = generalised_advantages(*columns)
        np.testing.assert_array_equal(together[:, i : i + 1], alone)
