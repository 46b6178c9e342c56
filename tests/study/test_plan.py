"""Planned studies: they fit into the time, grow with it, and say what they can detect."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rlcb.comparison.procgen_scores import published
from rlcb.errors import UsageError
from rlcb.paths import PROJECT
from rlcb.study.plan import GAMES, ROUNDS, Plan, describe_power, plan_study, typical_spread
from rlcb.study.settings import check_study, configuration_settings
from rlcb.study.state import RunState, TimeEstimate
from rlcb.study.study import Study, build_study

TO_DO = RunState("to do", {}, None, 0.0, True)


def study_of(plan: Plan) -> Study:
    return build_study(plan.settings, "plan")


def estimated_hours(plan: Plan) -> float:
    """The time that the study itself says beforehand."""
    study = study_of(plan)
    states = {run.name: TO_DO for run in study.runs}
    seconds = TimeEstimate(study, states).total_remaining(study.runs, states)
    assert seconds is not None
    return seconds / 3600


@pytest.mark.parametrize("cores", [1, 2, 4, 16, 128])
@pytest.mark.parametrize("hours", [0.15, 0.5, 1, 3, 8, 24, 200])
def test_a_planned_study_takes_the_given_time_and_has_three_seeds(hours: float, cores: int) -> None:
    plan = plan_study(hours, cores, {})
    study = study_of(plan)
    assert 0.95 * hours < estimated_hours(plan) <= hours
    assert plan.seconds / 3600 == pytest.approx(estimated_hours(plan), rel=1e-6)
    assert plan.runs == len(study.runs)
    assert len(study.seeds) >= 3 and len(study.configurations) >= 2
    assert study.duration is not None and study.duration * 3600 >= 20
    for pair in study.configurations:
        assert configuration_settings(study, *pair)["model"]["architecture"] == "nature"
    check_study(study, {pair: configuration_settings(study, *pair) for pair in study.configurations})


def test_more_time_gives_no_smaller_study() -> None:
    plans = [study_of(plan_study(hours, 2, {})) for hours in (0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32, 64, 128)]
    for name in ("algorithms", "modes", "envs", "seeds"):
        sizes = [len(getattr(each, name)) for each in plans]
        assert sizes == sorted(sizes)
    assert plans[-1].envs == [f"procgen-{game}-v0" for game in GAMES]


def test_the_first_study_takes_about_ten_minutes_on_two_cores_and_less_on_more() -> None:
    two, one, many = (plan_study(None, cores, {}) for cores in (2, 1, 16))
    assert 9 < two.seconds / 60 < 11
    assert many.seconds < two.seconds < one.seconds
    study = study_of(two)
    assert study.envs == ["procgen-starpilot-v0"] and study.seeds == [1, 2, 3]
    assert study.configurations == [("ppo", "parallel"), ("impala", "parallel"), ("a2c", "parallel")]
    assert study.evaluate_episodes > 0


GIVEN: list[dict[str, Any]] = [
    {"algorithms": ["a2c", "ppo"]},
    {"modes": ["sequential"]},
    {"envs": ["coinrun", "maze"]},
    {"seeds": [7, 8]},
    {"evaluate_episodes": 30},
    {"cooldown": 5.0},
    {"duration": 0.01},
    {"set": {"model.architecture": "impala"}},
]


@pytest.mark.parametrize("given", GIVEN)
def test_what_is_given_stays_and_the_rest_is_planned(given: dict[str, Any]) -> None:
    plan = plan_study(1.0, 2, given)
    for key, value in given.items():
        assert plan.settings[key] == value or value.items() <= plan.settings[key].items()
    assert estimated_hours(plan) <= 1.0


def test_learning_settings_are_added_only_where_the_user_gives_none() -> None:
    assert plan_study(1.0, 2, {"envs": ["CartPole-v1"]}).settings["set"] == {}
    assert plan_study(1.0, 2, {"config": {"ppo": "my.yaml"}}).settings["set"] == {}
    mine = plan_study(1.0, 2, {"set": {"training.batch_size": 512}}).settings["set"]
    assert mine == {"training.batch_size": 512, "model.architecture": "nature"}
    others = plan_study(1.0, 2, {"algorithms": ["a2c", "impala"]}).settings["set"]
    assert others == {"model.architecture": "nature"}


@pytest.mark.parametrize(
    ("hours", "given", "named"),
    [
        (0.01, {}, "--hours 0.01: too short for a comparison; the smallest has 6 runs"),
        (0.2, {"duration": 0.1}, "too short"),
        (-1.0, {}, "--hours -1"),
        (float("nan"), {}, "--hours nan"),
        (1.0, {"total_timesteps": 100}, "--total-timesteps"),
        (1.0, {"seeds": 3}, "seeds"),
        (1.0, {"envs": ["coinrun", "coinrun"]}, "given twice"),
        (1.0, {"duration": -1.0}, "duration"),
    ],
)
def test_an_impossible_plan_is_refused(hours: float, given: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=re.escape(named)):
        plan_study(hours, 2, given)


def test_a_plan_in_rounds_begins_with_one_seed_and_has_time_for_several() -> None:
    for hours, given in ((3.0, {}), (None, {"max_hours": 3.0})):
        study = study_of(plan_study(hours, 2, {"until_decided": True, **given}))
        assert study.until_decided and study.max_hours == 3.0 and study.seeds == [1]
        states = {run.name: TO_DO for run in study.runs}
        assert TimeEstimate(study, states).possible_rounds() in (ROUNDS, ROUNDS + 1)


@pytest.mark.parametrize(("groups", "seeds"), [(2, 3), (3, 3), (4, 5), (7, 5)])
def test_the_difference_that_a_study_can_detect_is_that_of_the_noncentral_t_distribution(
    groups: int, seeds: int
) -> None:
    text = describe_power(groups, seeds, ["procgen-starpilot-v0"])
    found = re.search(r"a difference of ([\d.]+) standard deviations.*starpilot: about ([\d.]+) in", text)
    assert found is not None
    said, in_return = map(float, found.groups())
    degrees, pairs = 2 * seeds - 2, groups * (groups - 1) / 2
    critical = stats.t.isf(0.05 / pairs / 2, degrees)
    low, high = (
        stats.nct.sf(critical, degrees, each * np.sqrt(seeds / 2)) for each in (said - 0.06, said + 0.06)
    )
    assert low < 0.8 < high
    spread = typical_spread("starpilot")
    assert spread is not None and in_return == pytest.approx(said * spread.std, abs=0.07)


@pytest.mark.parametrize(("groups", "seeds"), [(2, 3), (3, 3), (4, 5)])
def test_that_difference_is_found_in_four_of_five_simulated_studies(groups: int, seeds: int) -> None:
    found = re.search(r"a difference of ([\d.]+)", describe_power(groups, seeds, []))
    assert found is not None
    random = np.random.default_rng(groups)
    first, second = random.normal(float(found[1]), 1, (20_000, seeds)), random.normal(0, 1, (20_000, seeds))
    p = stats.ttest_ind(first, second, axis=1).pvalue
    share = (p < 0.05 / (groups * (groups - 1) / 2)).mean()
    assert share == pytest.approx(0.8, abs=0.025)


def test_nothing_is_said_about_spreads_that_nobody_knows() -> None:
    assert typical_spread("CartPole-v1") is None
    assert "in return" not in describe_power(2, 5, ["CartPole-v1"])
    assert describe_power(2, 1, ["coinrun"]).startswith("nothing")


def test_measured_spreads_are_those_of_the_seven_minute_study() -> None:
    text = (PROJECT / "docs" / "results.md").read_text()
    table = text[text.index("## Seven minutes") :]
    rows = re.findall(r"^\| (?:PPO|A2C|A3C|IMPALA) .*?\|(.*)\|$", table, re.MULTILINE)[:7]
    deviations = np.array([float(row.split("|")[3].split("±")[1]) for row in rows])
    spread = typical_spread("starpilot")
    assert spread is not None and spread.std == pytest.approx(np.sqrt((deviations**2).mean()), abs=0.01)


def test_published_spreads_are_root_mean_squares_up_to_a_million_timesteps() -> None:
    spread, known = typical_spread("procgen-coinrun-v0"), published("procgen-coinrun-v0", "easy")
    assert spread is not None and known is not None
    assert known.timesteps[:4].tolist() == [100_000, 250_000, 500_000, 1_000_000]
    assert spread.std == pytest.approx(np.sqrt(np.square([0.17, 0.16, 0.20, 0.36]).mean()))
