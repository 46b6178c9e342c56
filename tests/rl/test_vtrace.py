"""V-trace against the sum of its definition, against advantages on policy, and against known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlcb.rl.gae import generalised_advantages
from rlcb.rl.vtrace import Thresholds, vtrace


def column(*numbers: float) -> NDArray[np.float32]:
    """An unroll (T, 1) of one environment."""
    return np.array(numbers, np.float32)[:, None]


def flags(length: int, *positions: int) -> NDArray[np.bool_]:
    marked = np.zeros((length, 1), np.bool_)
    marked[list(positions)] = True
    return marked


def direct_sum(
    log_ratios: NDArray[Any],
    rewards: NDArray[Any],
    values: NDArray[Any],
    next_values: NDArray[Any],
    terminated: NDArray[Any],
    truncated: NDArray[Any],
    gamma: float,
    trace_lambda: float,
    thresholds: tuple[float, float, float],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equation 1 of Espeholt et al. 2018 as it stands there, in double precision:

    v_s = V(x_s) + sum over t from s to the end of gamma^(t-s) (c_s ... c_(t-1)) rho_t (r_t + gamma V(x_{t+1})
    - V(x_t)), where the end is that of the episode or of the unroll.
    """
    rho_bar, pg_rho_bar, c_bar = thresholds
    ratios = np.exp(log_ratios.astype(np.float64))
    steps, envs = rewards.shape
    targets, advantages = np.zeros((steps, envs)), np.zeros((steps, envs))

    def future(t: int, i: int, value: float) -> float:
        return 0.0 if terminated[t, i] else gamma * value

    for i in range(envs):
        for s in range(steps):
            total = float(values[s, i])
            for t in range(s, steps):
                product = 1.0
                for k in range(s, t):
                    product *= trace_lambda * min(c_bar, ratios[k, i])
                delta = rewards[t, i] + future(t, i, float(next_values[t, i])) - values[t, i]
                total += gamma ** (t - s) * product * min(rho_bar, ratios[t, i]) * delta
                if terminated[t, i] or truncated[t, i]:
                    break
            targets[s, i] = total
        for s in range(steps):
            last = s == steps - 1 or terminated[s, i] or truncated[s, i]
            following = float(next_values[s, i]) if last else targets[s + 1, i]
            advantage = rewards[s, i] + future(s, i, following) - values[s, i]
            advantages[s, i] = min(pg_rho_bar, ratios[s, i]) * advantage
    return targets, advantages


def random_case(seed: int, steps: int, envs: int, end_rate: float) -> tuple[NDArray[Any], ...]:
    """Log-ratios, rewards, values, values of the true successors, terminations and truncations.

    Values of successors are those of the next row except where an episode is truncated (its final observation
    is in no row) and behind the last row; after a termination they are anything.
    """
    rng = np.random.default_rng(seed)
    log_ratios = rng.uniform(-2.5, 2.5, (steps, envs)).astype(np.float32)
    rewards, values, elsewhere = rng.normal(size=(3, steps, envs)).astype(np.float32)
    terminated, truncated = rng.random((2, steps, envs)) < end_rate
    inside = np.zeros((steps, envs), np.bool_)
    inside[:-1] = ~(terminated | truncated)[:-1]
    next_values = np.where(inside, np.roll(values, -1, axis=0), elsewhere)
    return log_ratios, rewards, values, next_values, terminated, truncated


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 10),
    envs=st.integers(1, 4),
    end_rate=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 0.999, 1.0]),
    trace_lambda=st.sampled_from([0.0, 0.7, 1.0]),
    thresholds=st.sampled_from([(1.0, 1.0, 1.0), (3.7, 2.2, 1.0), (0.5, 1.5, 2.0), (1e9, 1e9, 0.3)]),
)
def test_vtrace_equals_the_direct_sum_of_its_definition(
    seed: int,
    steps: int,
    envs: int,
    end_rate: float,
    gamma: float,
    trace_lambda: float,
    thresholds: tuple[float, float, float],
) -> None:
    case = random_case(seed, steps, envs, end_rate)
    expected = direct_sum(*case, gamma, trace_lambda, thresholds)
    actual = vtrace(*case, gamma, trace_lambda, Thresholds(*thresholds))
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == (steps, envs)
        assert ours.dtype == np.float32
        # products of traces up to 2 are large numbers of both signs: the sum's rounding goes with the largest
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5 * max(1.0, np.abs(expected[0]).max()))


def test_thresholds_are_one_unless_they_are_given() -> None:
    case = random_case(5, 8, 3, 0.2)
    expected = direct_sum(*case, 0.95, 1.0, (1.0, 1.0, 1.0))
    for ours, theirs in zip(vtrace(*case, gamma=0.95), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trace_lambda", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("end_rate", [0.0, 0.3])
def test_on_policy_targets_are_lambda_returns(trace_lambda: float, end_rate: float) -> None:
    _, *case = random_case(7, 12, 5, end_rate)
    targets, _ = vtrace(np.zeros((12, 5), np.float32), *case, 0.97, trace_lambda)
    _, returns = generalised_advantages(*case, 0.97, trace_lambda)
    np.testing.assert_allclose(targets, returns, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("end_rate", [0.0, 0.3])
def test_on_policy_advantages_with_lambda_one_equal_generalised_advantage_estimation(
    end_rate: float,
) -> None:
    _, *case = random_case(8, 12, 5, end_rate)
    _, advantages = vtrace(np.zeros((12, 5), np.float32), *case, 0.97, 1.0)
    expected, _ = generalised_advantages(*case, 0.97, 1.0)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("behaviour", "target", "expected"), [(0.4, 0.8, (1.0, 1.0)), (0.8, 0.4, (0.5, 0.5))]
)
def test_known_answer_of_one_terminal_step(
    behaviour: float, target: float, expected: tuple[float, float]
) -> None:
    """Reward 1, value 0: a ratio of 2 is clipped to 1, and one of 1/2 enters both target and advantage."""
    zero = column(0)
    targets, advantages = vtrace(
        column(np.log(target / behaviour)), column(1), zero, zero, flags(1, 0), flags(1), gamma=1.0
    )
    assert (targets.item(), advantages.item()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "targets", "advantages"),
    [
        # ratio 1/2 throughout, gamma .9, V 1 1 2 and 3 behind; r = 5 0 7
        # row 2: 2 + .5 (7 + 2.7 - 2) = 5.85, advantage .5 * 7.7
        # row 1 truncated, V of its final observation 4: 1 + .5 (3.6 - 1) = 2.3
        # row 0: 1 + .5 (5 + .9 - 1) + .9 * .5 * (2.3 - 1) = 4.035, advantage .5 (5 + .9 * 2.3 - 1)
        (flags(3), flags(3, 1), [4.035, 2.3, 5.85], [3.035, 1.3, 3.85]),
        # row 1 terminated: 1 + .5 (0 - 1) = .5; row 0: 1 + .5 * 4.9 + .45 * (.5 - 1) = 3.225
        (flags(3, 1), flags(3), [3.225, 0.5, 5.85], [2.225, -0.5, 3.85]),
        (flags(3, 1), flags(3, 1), [3.225, 0.5, 5.85], [2.225, -0.5, 3.85]),
    ],
    ids=["truncated", "terminated", "both flags are a termination"],
)
def test_known_answer_at_the_end_of_an_episode(
    terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], targets: list[float], advantages: list[float]
) -> None:
    result = vtrace(
        column(*[np.log(0.5)] * 3), column(5, 0, 7), column(1, 1, 2), column(1, 4, 3),
        terminated, truncated, gamma=0.9,
    )  # fmt: skip
    np.testing.assert_allclose(result[0][:, 0], targets, rtol=1e-6)
    np.testing.assert_allclose(result[1][:, 0], advantages, rtol=1e-6)


def test_the_three_thresholds_are_used_where_the_paper_has_them() -> None:
    """One threshold at a time is moved: rho-bar moves targets only of its own step's error, c-bar only what
    comes from later, pg_rho only advantages."""
    two = column(np.log(2), np.log(2))
    arguments: list[Any] = [two, column(1, 1), column(0, 0), column(0, 0), flags(2, 1), flags(2), 1.0, 1.0]

    def numbers(*thresholds: float) -> list[float]:
        return np.concatenate(vtrace(*arguments, Thresholds(*thresholds))).ravel().tolist()

    # targets (rho r_0 + c rho r_1, rho r_1), advantages (pg_rho (r_0 + v_1), pg_rho r_1)
    assert numbers(1, 1, 1) == pytest.approx([2, 1, 2, 1])
    assert numbers(1.5, 1, 1) == pytest.approx([3, 1.5, 2.5, 1])
    assert numbers(1, 1.5, 1) == pytest.approx([2, 1, 3, 1.5])
    assert numbers(1, 1, 1.5) == pytest.approx([2.5, 1, 2, 1])
    assert numbers(9, 9, 9) == pytest.approx([6, 2, 6, 2])  # the ratio is 2


def test_steps_after_the_end_of_an_episode_do_not_change_its_targets() -> None:
    """What happens after an end inside a row changes nothing before it, and one row changes no other."""
    log_ratios, rewards, values, next_values, terminated, truncated = random_case(9, 9, 3, 0.0)
    terminated[3, 0] = truncated[5, 1] = True
    before = vtrace(log_ratios, rewards, values, next_values, terminated, truncated, 0.99)
    changed = rewards.copy()
    changed[4:, 0] += 100
    changed[6:, 1] += 100
    after = vtrace(log_ratios, changed, values, next_values, terminated, truncated, 0.99)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old[:4, 0], new[:4, 0])
        np.testing.assert_array_equal(old[:6, 1], new[:6, 1])
        np.testing.assert_array_equal(old[:, 2], new[:, 2])
        assert (old[4:, 0] != new[4:, 0]).all()
        assert (old[6:, 1] != new[6:, 1]).all()


def test_inputs_are_not_modified() -> None:
    case = random_case(10, 6, 2, 0.3)
    copies = [array.copy() for array in case]
    vtrace(*case, 0.9)
    for array, copy in zip(case, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_ratios_too_large_for_any_threshold_stay_finite() -> None:
    """A behaviour that hardly ever took the action."""
    zero = column(0)
    for result in vtrace(column(60.0), column(1), zero, zero, flags(1, 0), flags(1), gamma=1.0):
        assert result.item() == pytest.approx(1.0)
