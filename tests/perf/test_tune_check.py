"""The check of recommendations: what it holds them against, and when they have passed."""

from __future__ import annotations

from typing import Any

import pytest

from perf import tune_check
from rlcb.config.config import Config
from rlcb.machine.profile import Setup
from rlcb.processes.signals import StopSignal
from rlcb.profiling.advice import describe_setup, recommend
from tests.profiles import configured, profile


def shapes(config: Config, recommended: Setup) -> set[tuple[Any, ...]]:
    found = tune_check.setups(config, recommended, 2)
    names = ("processes", "learners", "threads", "num_envs", "microbatch_size")
    result = {tuple(getattr(each, name) for name in names) for each in found}
    assert len(result) == len(found)
    return result


def test_workers_threads_microbatches_and_twice_the_environments_are_tried() -> None:
    config = configured(mode="parallel", parallel={"num_workers": 1})
    recommended = recommend(profile(), config)
    ways = ((1, 1), (2, 1), (1, 2))  # workers, threads
    assert recommended.num_envs == 32
    sizes = {(w, None, t, 32, size) for w, t in ways for size in (32, 64, 128, 256)}
    envs = {(w, None, t, 64, recommended.microbatch_size) for w, t in ways}
    assert shapes(config, recommended) == sizes | envs


def test_the_environments_of_the_configuration_are_tried_where_others_are_recommended() -> None:
    config = configured()
    recommended = recommend(profile(), config).model_copy(update={"num_envs": 64})
    assert {each[3] for each in shapes(config, recommended)} == {32, 64}


def test_actors_and_learners_are_tried_with_microbatches_that_make_a_difference() -> None:
    config = configured("impala", "parallel", training={"n_steps": 128})
    recommended = recommend(profile(), config)
    found = {each for each in shapes(config, recommended) if each[3] == 32}
    # Of 32, 64 and 128 samples each is one column of 128 steps; 256 are two.
    assert {(each[0], each[1]) for each in found} == {(a, n) for a in (1, 2, 4) for n in (1, 2)}
    assert len(found) == 6 * 2


def test_the_same_program_is_not_run_under_two_names() -> None:
    """Two workers share minibatches of 64: microbatches of 32 samples are all there can be."""
    config = configured(mode="parallel", training={"batch_size": 64}, parallel={"num_workers": 1})
    recommended = recommend(profile(), config)
    two = [each for each in shapes(config, recommended) if each[0] == 2 and each[3] == 32]
    assert len(two) == 1


@pytest.mark.parametrize(
    ("others", "more_envs", "share", "whole", "passed"),
    [
        (1.0, 1.0, 1.0, 1.0, True),
        (1.05, 1.0, 0.95, 0.95, True),
        (1.07, 1.0, 0.93, 0.93, False),
        (1.0, 1.09, 1.0, 0.92, True),  # which is what the recommendation allows for environments
        (1.0, 1.15, 1.0, 0.87, False),
    ],
)
def test_a_recommendation_passes_if_it_is_near_the_best(
    others: float, more_envs: float, share: float, whole: float, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured()
    own = describe_setup(recommend(profile(), config), config)

    def rate(config: Config, setup: Setup, seconds: float, stop: StopSignal) -> float:
        if describe_setup(setup, config) == own:
            return 100.0
        return 100.0 * (more_envs if setup.num_envs == 64 else others)

    monkeypatch.setattr(tune_check, "rate", rate)
    with StopSignal(forwards=True) as stop:
        text, data = tune_check.check("ppo_sequential", config, profile(), 1.0, 2, stop)
    assert data["recommended"] == own
    assert round(data["share"], 2) == share
    assert round(data["share_of_all"], 2) == whole
    assert data["passed"] is passed
    assert ("FAILED" in text) is not passed


def test_one_slow_round_does_not_drop_a_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best setup loses its first run; one that is slow twice is dropped."""
    config = configured()
    calls: dict[str, int] = {}
    best, slow = "1 process of 1 thread, 32 environments, microbatches of 64", "microbatches of 256"

    def rate(config: Config, setup: Setup, seconds: float, stop: StopSignal) -> float:
        name = describe_setup(setup, config)
        calls[name] = calls.get(name, 0) + 1
        if name == best:
            return 20.0 if calls[name] == 1 else 200.0
        return 30.0 if name.endswith(slow) else 100.0

    monkeypatch.setattr(tune_check, "rate", rate)
    with StopSignal(forwards=True) as stop:
        _, data = tune_check.check("ppo_sequential", config, profile(), 1.0, 3, stop)
    assert data["best"] == best and data["passed"] is False
    assert {name for name, count in calls.items() if count == 2} == {
        name for name in calls if name.endswith(slow)
    }
