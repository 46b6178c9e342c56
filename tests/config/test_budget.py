"""When a run ends, and what the learning rate is until then."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlcb.config.budget import Budget
from rlcb.config.config import Config
from rlcb.training.run import learning_rate_of


def make_config(**training: Any) -> Config:
    """Rollouts of 8 steps of 4 environments: 32 timesteps an update."""
    training = {"n_steps": 8, "batch_size": 32, **training}
    return Config.model_validate({"env": {"num_envs": 4}, "training": training})


def boundary_where_it_stops(budget: Budget, update_seconds: list[float]) -> int:
    """The number of updates after which a run stops whose updates take so long."""
    elapsed, before = 0.0, 0.0
    for updates, seconds in enumerate(update_seconds):
        if budget.finished(updates, elapsed, before):
            return updates
        elapsed += seconds
        before = seconds
    pytest.fail("it never stops")


@given(timesteps=st.integers(1, 10**9), n_steps=st.integers(1, 512), num_envs=st.integers(1, 128))
def test_timesteps_are_rounded_up_to_whole_updates(timesteps: int, n_steps: int, num_envs: int) -> None:
    budget = Budget(n_steps * num_envs, timesteps, None)
    assert budget.updates is not None
    assert budget.updates * n_steps * num_envs >= timesteps
    assert (budget.updates - 1) * n_steps * num_envs < timesteps


@pytest.mark.parametrize(("timesteps", "updates"), [(1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (1000, 32)])
def test_a_run_by_timesteps_makes_the_updates_that_reach_them(timesteps: int, updates: int) -> None:
    budget = Budget.of(make_config(total_timesteps=timesteps))
    assert boundary_where_it_stops(budget, [1e6] * 50) == updates


@given(update_seconds=st.floats(0.01, 100), seconds=st.floats(0.001, 5000))
def test_a_timed_run_ends_at_the_boundary_nearest_to_its_deadline(
    update_seconds: float, seconds: float
) -> None:
    assume(seconds / update_seconds < 2000)
    budget = Budget.of(make_config(total_timesteps=None, duration_hours=seconds / 3600))
    stopped = boundary_where_it_stops(budget, [update_seconds] * 2100)
    distances = {k: abs(k * update_seconds - seconds) for k in range(1, 2100)}  # at least one update is made
    assert distances[stopped] <= min(distances.values()) + 1e-6


def test_a_slow_update_before_the_deadline_is_expected_again() -> None:
    budget = Budget.of(make_config(total_timesteps=None, duration_hours=10 / 3600))
    assert boundary_where_it_stops(budget, [1, 1, 6, 6, 6]) == 3  # 8 s is nearer to 10 s than 14 s
    assert boundary_where_it_stops(budget, [6, 1, 1, 1, 1, 1]) == 5  # 10 s


def test_a_run_without_an_update_is_never_finished() -> None:
    for budget in (Budget(32, None, 1.0), Budget(32, 1, 1.0)):
        assert not budget.finished(updates=0, elapsed=5.0, update_seconds=0.0)
        assert budget.finished(updates=1, elapsed=5.0, update_seconds=0.0)


@pytest.mark.parametrize("hours", [1e-9, 1e-4])
def test_a_time_too_short_for_one_update_makes_one(hours: float) -> None:
    budget = Budget.of(make_config(total_timesteps=None, duration_hours=hours))
    assert boundary_where_it_stops(budget, [100.0] * 3) == 1


def test_of_two_limits_the_first_to_be_reached_ends_the_run() -> None:
    budget = Budget.of(make_config(total_timesteps=320, duration_hours=10 / 3600))
    assert boundary_where_it_stops(budget, [0.1] * 200) == 10
    assert boundary_where_it_stops(budget, [2.0] * 200) == 5
    assert budget.share_used(5, 1.0) == 0.5
    assert budget.share_used(1, 7.0) == pytest.approx(0.7)


def test_the_used_share_goes_from_zero_to_one_and_not_beyond() -> None:
    by_steps, by_time = Budget(32, 128, None), Budget(32, None, 60.0)
    assert [by_steps.share_used(k, 1e9) for k in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    assert [by_time.share_used(10**9, seconds) for seconds in (0, 15, 60, 90)] == [0, 0.25, 1, 1]


# --- The learning rate ---


def test_annealing_from_one_thousandth_over_four_updates() -> None:
    config = make_config(total_timesteps=100, learning_rate=1e-3, lr_schedule="linear")  # rounded up to 128
    budget = Budget.of(config)
    assert budget.updates == 4
    rates = [learning_rate_of(config, budget, update, elapsed=123.0) for update in range(4)]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4], rel=1e-12)


def test_annealing_in_a_timed_run_follows_the_share_of_time_whatever_the_number_of_updates() -> None:
    config = make_config(total_timesteps=None, duration_hours=0.5, learning_rate=1e-3, lr_schedule="linear")
    rates = [learning_rate_of(config, Budget.of(config), 10**6, seconds) for seconds in (0, 450, 900, 1350)]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4], rel=1e-12)


@given(update_seconds=st.floats(0.01, 100), seconds=st.floats(0.01, 1000))
def test_annealing_never_comes_to_zero_in_an_update_that_is_made(
    update_seconds: float, seconds: float
) -> None:
    assume(seconds / update_seconds < 2000)
    config = make_config(total_timesteps=None, duration_hours=seconds / 3600, lr_schedule="linear")
    budget = Budget.of(config)
    updates = boundary_where_it_stops(budget, [update_seconds] * 2100)
    rates = [learning_rate_of(config, budget, k, k * update_seconds) for k in range(updates)]
    assert all(rate > 0 for rate in rates)
    assert rates == sorted(rates, reverse=True)
    assert math.isclose(rates[0], config.training.learning_rate)


def test_a_constant_rate_stays() -> None:
    config = make_config(total_timesteps=128, learning_rate=3e-4)
    budget = Budget.of(config)
    assert {learning_rate_of(config, budget, k, 1e9) for k in range(4)} == {3e-4}
