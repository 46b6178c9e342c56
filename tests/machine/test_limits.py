"""Limits, predictions and recommendations against calculations by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rlcb.errors import UsageError
from rlcb.machine.limits import (
    NotMeasured,
    Times,
    best_times,
    data_parallel_fps,
    fastest_microbatch,
    interpolate,
    limit,
    machine_limit,
    mismatch_with_run,
    reduce_seconds,
)
from rlcb.profiling.advice import bottleneck, describe_setup, recommend, setup_settings
from tests.profiles import configured, passes, profile

# --- Limits ---


def test_the_limit_of_all_cores_is_cores_over_the_time_of_a_timestep() -> None:
    # 0.1 ms environment, 0.3 ms forward with 32 at once (64 are more than there are), 1 ms a pass to learn.
    assert machine_limit(profile(), configured()) == pytest.approx(2 / (0.1e-3 + 0.3e-3 + 4 * 1.0e-3))
    assert machine_limit(profile(), configured("a2c", "parallel")) == pytest.approx(2 / (0.1e-3 + 1.2e-3))


def test_a_sequential_run_has_the_limit_of_its_threads() -> None:
    assert limit(profile(), configured(), 2) == pytest.approx(1 / (0.08e-3 + 0.22e-3 + 4 * 0.7e-3))
    assert limit(profile(), configured(), 1) == pytest.approx(1 / (0.1e-3 + 0.3e-3 + 4 * 1.0e-3))


def test_a_parallel_run_has_the_limit_of_all_cores_whatever_its_threads() -> None:
    parallel = configured(mode="parallel", parallel={"num_workers": 2})
    assert limit(profile(), parallel, 2) == machine_limit(profile(), parallel)


def test_threads_that_were_not_measured_have_no_limit() -> None:
    with pytest.raises(NotMeasured, match="3 threads"):
        limit(profile(), configured(), 3)


def test_the_forward_pass_is_the_fastest_of_at_most_as_many_environments_as_the_run_has() -> None:
    assert best_times(profile(), configured(env={"num_envs": 16}), 1).forward == pytest.approx(0.4e-3)
    assert best_times(profile(), configured(env={"num_envs": 64}), 1).forward == pytest.approx(0.25e-3)
    few = configured("a2c", env={"num_envs": 4}, hardware={"keep_acting_passes": False})
    assert best_times(profile(), few, 1).forward == pytest.approx(0.4e-3)
    kept = configured("a2c", env={"num_envs": 4})
    assert best_times(profile(), kept, 1).learn == pytest.approx(1.4e-3)


def test_a_profile_is_refused_for_another_network_game_difficulty_or_several_machines() -> None:
    assert mismatch_with_run(profile(), configured()) is None
    cases = [
        ("another network (nature, 1,000 parameters, float32)", {"model": {"architecture": "impala"}}),
        ("another network", {"model": {"hidden_size": 512}}),
        ("another network", {"model": {"precision": "bfloat16"}}),
        ("measured procgen-coinrun-v0 easy, not procgen-starpilot-v0 easy", {"env": {"id": "starpilot"}}),
        ("not procgen-coinrun-v0 hard", {"env": {"distribution_mode": "hard"}}),
        ("of one machine", {"mode": "distributed"}),
        (
            'not procgen-coinrun-v0 easy {"use_backgrounds": false}',
            {"env": {"procgen": {"use_backgrounds": False}}},
        ),
    ]
    for words, changes in cases:
        assert words in str(mismatch_with_run(profile(), configured(**changes)))


def test_settings_that_a_network_does_not_use_make_no_difference() -> None:
    same = configured(model={"mlp_sizes": (8,), "impala_channels": (4, 4)})
    assert mismatch_with_run(profile(), same) is None


# --- Sizes between those that were measured ---


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (32, 3.0),
        (64, 2.0),
        (128, 1.5),
        (45.254834, 2.5),  # half way between 32 and 64 on a logarithmic scale
        (256, 1.5),  # no better than the largest
        (8, 12.0),  # a pass takes as long as one of the smallest size
    ],
)
def test_times_between_sizes_are_interpolated(size: Any, expected: float) -> None:
    assert interpolate({32: 3.0, 64: 2.0, 128: 1.5}, size) == pytest.approx(expected)


def test_sums_between_measured_numbers_of_processes_are_interpolated() -> None:
    measured = profile(
        reduce=[
            {"processes": 2, "bytes": 400, "seconds": 5.0},
            {"processes": 2, "bytes": 4000, "seconds": 0.002},
            {"processes": 4, "bytes": 4000, "seconds": 0.006},
        ]
    )
    assert [reduce_seconds(measured, n) for n in (1, 2, 4)] == [0.0, 0.002, 0.006]
    assert reduce_seconds(measured, 3) == pytest.approx(0.004)
    with pytest.raises(NotMeasured):
        reduce_seconds(profile(reduce=[]), 2)


# --- Predictions ---


def test_workers_are_predicted_from_their_own_sizes_and_the_sums() -> None:
    # Two workers have 16 environments and 512 samples of each minibatch; 4 epochs of 4 minibatches.
    config = configured(mode="parallel")
    seconds = (0.1e-3 + 0.4e-3 + 4 * 1.0e-3) / 2 + 16 * 0.002 / 4096
    assert data_parallel_fps(profile(), config, 2, 1) == (pytest.approx(1 / seconds), 128)


def test_workers_of_a3c_do_not_sum() -> None:
    config = configured("a3c", "parallel", training={"n_steps": 16})
    assert data_parallel_fps(profile(), config, 2, 1)[0] == pytest.approx(2 / (0.1e-3 + 1.4e-3))


def test_cached_activations_replace_the_separate_forward_pass() -> None:
    """32 environments: 1.2 ms in one pass; 0.3 + 1.0 ms where the run makes them again."""
    for keep, milliseconds in ((None, 1.2), (True, 1.2), (False, 0.3 + 1.0)):
        config = configured("a2c", "parallel", hardware={"keep_acting_passes": keep})
        assert machine_limit(profile(), config) == pytest.approx(2e3 / (0.1 + milliseconds))
    times = best_times(profile(), configured("a2c"), 1)
    assert times.parts == pytest.approx({"env": 0.1 / 1.3, "forward": 0.0, "learn": 1.2 / 1.3})
    text = bottleneck(times, 1, None, {})
    assert text == (
        "92% of the work is acting and learning, which share their forward passes; then stepping the "
        "environments, 8%"
    )


def test_a_microbatch_is_not_larger_than_a_workers_share() -> None:
    # 16 steps of 32 environments over 2 workers and 8 minibatches: 32 samples, a pass of 64's length.
    config = configured(mode="parallel", training={"n_steps": 16, "batch_size": 64})
    fps, microbatch = data_parallel_fps(profile(), config, 2, 1)
    seconds = (0.1e-3 + 0.4e-3 + 4 * 2.2e-3) / 2 + 32 * 0.002 / 512
    assert (fps, microbatch) == (pytest.approx(1 / seconds), 64)


def test_the_named_microbatch_is_the_one_that_runs() -> None:
    # Unrolls of 128 steps: every microbatch of at most 128 samples is one column of 128.
    speeds = profile(forward_backward=passes("float32", {1: {32: 2.0, 64: 1.1, 128: 1.0, 256: 1.2}}))
    config = configured("impala")
    assert fastest_microbatch(speeds, config, 1, 1) == (128, pytest.approx(1.0e-3))
    short = configured("impala", training={"n_steps": 16})
    assert fastest_microbatch(speeds, short, 1, 1) == (128, pytest.approx(1.0e-3))
    # A share of 16 samples is smaller than all of them.
    tiny = configured("a2c", env={"num_envs": 16}, training={"n_steps": 1})
    assert fastest_microbatch(speeds, tiny, 1, 1) == (32, pytest.approx(4.0e-3))


# --- Recommendations ---


def test_a_sequential_run_gets_the_threads_that_are_fastest() -> None:
    setup = recommend(profile(), configured())
    assert (setup.processes, setup.threads, setup.num_envs, setup.microbatch_size) == (1, 2, 32, 128)
    assert setup.predicted_fps == pytest.approx(1 / (0.08e-3 + 0.22e-3 + 4 * 0.7e-3))


def test_a_sequential_run_gets_one_thread_where_more_do_not_help() -> None:
    slow = profile(
        forward=passes("float32", {1: {32: 0.3}, 2: {32: 0.6}}),
        forward_backward=passes("float32", {1: {128: 1.0}, 2: {128: 2.0}}),
    )
    assert recommend(slow, configured()).threads == 1


def test_more_workers_are_recommended_only_if_faster() -> None:
    config = configured(mode="parallel", parallel={"num_workers": 1})
    assert recommend(profile(), config).processes == 2
    costly = profile(reduce=[{"processes": 2, "bytes": 4000, "seconds": 2.0}])
    alone = recommend(costly, config)
    assert (alone.processes, alone.threads) == (1, 2)


def test_actors_and_learners_are_split_as_the_times_say() -> None:
    config = configured("impala", "parallel", training={"n_steps": 16})
    setup = recommend(profile(), config)
    # In turns on two cores: acting with 16 environments takes 0.5 ms, learning 1 ms.
    assert (setup.processes, setup.learners, setup.threads) == (2, 2, 1)
    assert setup.predicted_fps == pytest.approx(2 / (0.1e-3 + 0.4e-3 + 1.0e-3))
    assert setup_settings(setup, config) == {
        "env.num_envs": 32,
        "impala.num_actors": 2,
        "impala.num_learners": 2,
        "hardware.num_threads": 1,
        "hardware.microbatch_size": 128,
    }


def test_a_split_that_was_set_before_does_not_bind_the_recommendation() -> None:
    config = configured("impala", "parallel", impala={"num_actors": 1, "num_learners": 1})
    assert recommend(profile(), config).processes == 2


def test_environments_change_only_for_a_large_gain_or_to_be_divisible() -> None:
    # Acting is all that counts here: with 64 environments at once it takes a third of the time.
    times = passes("float32", {1: {16: 9.0, 32: 9.0, 64: 3.0}, 2: {16: 9.0, 32: 9.0, 64: 9.0}})
    acting = profile(forward=times, act_and_learn=times)
    config = configured("a2c", training={"n_steps": 16})
    again = configured("a2c", training={"n_steps": 16}, hardware={"keep_acting_passes": False})
    assert recommend(acting, config).num_envs == recommend(acting, again).num_envs == 64
    assert recommend(acting, config, keep_envs=True).num_envs == 32
    assert recommend(profile(), config).num_envs == 32
    odd = configured(mode="parallel", env={"num_envs": 31}, parallel={"num_workers": 1})
    assert recommend(profile(), odd).num_envs == 32


def test_the_environments_are_whole_groups() -> None:
    config = configured(mode="parallel", env={"num_envs": 32, "group_size": 32}, parallel={"num_workers": 1})
    setup = recommend(profile(), config)
    assert setup.processes == 2 and setup.num_envs % 32 == 0


def test_indivisible_environments_have_no_setup() -> None:
    none = profile(forward=[], forward_backward=[])
    with pytest.raises(UsageError, match=r"env\.num_envs = 32"):
        recommend(none, configured())


def test_setups_are_described_in_words() -> None:
    config = configured("impala", "parallel", training={"n_steps": 16})
    text = describe_setup(recommend(profile(), config), config)
    assert text == "2 actors, 2 learners, 1 thread each, 32 environments, microbatches of 128"
    text = describe_setup(recommend(profile(), configured()), configured())
    assert text == "1 process of 2 threads, 32 environments, microbatches of 128"


# --- What holds a run up ---


def test_the_bottleneck_names_the_largest_part_and_the_largest_loss() -> None:
    text = bottleneck(Times(0.1, 0.2, 0.7), 4, 0.8, {"sync": 0.04, "wait": 0.1, "other": 0.01, "learn": 0.85})
    assert text.startswith("70% of the work is learning: forward and backward passes of 4 epochs; then the")
    assert text.endswith("spends 10% waiting for other processes, 4% summing gradients over the processes")


def test_a_run_that_loses_nothing_says_so() -> None:
    assert bottleneck(Times(0.7, 0.2, 0.1), 1, 0.97, {"other": 0.01}).endswith("Nothing else takes 3%")


def test_without_a_run_the_bottleneck_names_only_the_work() -> None:
    text = bottleneck(Times(0.7, 0.2, 0.1), 1, None, {})
    assert text == "70% of the work is stepping the environments; then the policy's forward passes, 20%"


def test_passes_that_are_slower_in_a_run_are_the_loss_where_nothing_else_is() -> None:
    text = bottleneck(Times(0.1, 0.2, 0.7), 1, 0.8, {"learn": 0.7, "other": 0.01})
    assert text.endswith("In a run, this work takes 1.25 times as long as measured on its own")
