"""The sequential test: its e-values, and its errors and rounds in simulated studies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from rlcb.comparison.sequential_test import (
    ALPHA,
    PRIOR_VARIANCE,
    Decision,
    Lead,
    critical_t,
    decide,
    difference_interval,
    e_values,
    least_rounds,
    threshold,
)

Draw = Callable[[np.random.Generator, int, int], NDArray[np.float64]]
STUDIES = 2000


def bayes_factor(differences: NDArray[np.float64]) -> float:
    """The density of t, averaged over effect sizes, divided by its density without an effect."""
    n = len(differences)
    t = float(stats.ttest_1samp(differences, 0.0).statistic)

    def joint(effect: float) -> float:
        density = stats.nct.pdf(t, n - 1, effect * np.sqrt(n))
        return float(density * stats.norm.pdf(effect, scale=np.sqrt(PRIOR_VARIANCE)))

    average, _ = integrate.quad(joint, -12, 12, points=[0.0, t / np.sqrt(n)], limit=400)
    return float(average / stats.t.pdf(t, n - 1))


def test_e_values_equal_the_bayes_factor_by_numerical_integration() -> None:
    differences = np.random.default_rng(3).normal(0.8, 1.0, 9)
    found = e_values(differences)
    assert found[0] == 1.0
    for n in range(2, 10):
        assert found[n - 1] == pytest.approx(bayes_factor(differences[:n]), rel=1e-6)


def test_e_values_do_not_depend_on_the_unit_and_skip_missing_rounds() -> None:
    differences = np.random.default_rng(4).normal(1.0, 1.0, 8)
    assert e_values(differences * 1e6) == pytest.approx(e_values(differences))
    assert e_values(-differences) == pytest.approx(e_values(differences))
    holes = np.insert(differences, [0, 3], np.nan)
    assert np.delete(e_values(holes), [0, 4]) == pytest.approx(e_values(differences))
    assert e_values(holes)[4] == e_values(holes)[3]


def test_equal_returns_are_no_evidence_and_equal_differences_the_most_that_n_rounds_can_give() -> None:
    assert (e_values(np.zeros(9)) <= 1).all()
    n = np.arange(2, 10)
    constant = e_values(np.full(9, 0.1))
    assert constant[1:] == pytest.approx((1 + n * PRIOR_VARIANCE) ** ((n - 1) / 2))
    large = e_values(100 + np.array([0.1, 0.3, 0.2, 0.25]))
    assert large[-1] < (1 + 4 * PRIOR_VARIANCE) ** 1.5


@pytest.mark.parametrize("groups", [2, 4, 7])
def test_the_critical_t_is_where_the_e_value_reaches_the_threshold(groups: int) -> None:
    level, random = threshold(groups), np.random.default_rng(groups)
    least = least_rounds(level)
    assert np.isinf(critical_t(least - 1, level)) and np.isfinite(critical_t(least, level))
    for n in (least, 10, 40):
        sample = random.normal(size=n)
        sample = (sample - sample.mean()) / sample.std(ddof=1)  # mean 0, standard deviation 1
        for factor, reached in ((0.999, False), (1.001, True)):
            shifted = sample + factor * critical_t(n, level) / np.sqrt(n)
            assert bool(e_values(shifted)[-1] >= level) is reached


def test_the_interval_holds_the_differences_that_the_test_does_not_exclude() -> None:
    differences = np.random.default_rng(8).normal(2.0, 1.0, 12)
    interval = difference_interval(differences, 20.0)
    assert interval is not None
    for end, inside in zip(interval, (1, -1)):
        assert e_values(differences - end)[-1] == pytest.approx(20.0, rel=1e-6)
        assert e_values(differences - (end + inside * 0.01))[-1] < 20.0
    assert difference_interval(differences[:3], 20.0) is None


def simulate(draw: Draw, groups: int, rounds: int, studies: int = STUDIES) -> list[Decision]:
    random = np.random.default_rng([groups, rounds])
    return [
        decide({f"g{i}": row for i, row in enumerate(draw(random, groups, rounds))}) for _ in range(studies)
    ]


def unequal(random: np.random.Generator, groups: int, rounds: int) -> NDArray[np.float64]:
    """Normal returns whose standard deviation falls by ten from one group to the next."""
    values: NDArray[np.float64] = random.normal(5, 1, (groups, rounds)) * 10.0 ** -np.arange(groups)[:, None]
    return values - 5 * 10.0 ** -np.arange(groups)[:, None]


NO_DIFFERENCE: dict[str, Draw] = {
    "normal": lambda random, groups, rounds: random.normal(3, 1, (groups, rounds)),
    "unequal": unequal,
    "lognormal": lambda random, groups, rounds: random.lognormal(0, 1, (groups, rounds)),
    "negatively skewed": lambda random, groups, rounds: -random.exponential(1, (groups, rounds)),
    "a tenth collapses": lambda random, groups, rounds: (
        random.normal(3, 0.1, (groups, rounds)) * (random.random((groups, rounds)) > 0.1)
    ),
}


@pytest.mark.parametrize("name", NO_DIFFERENCE)
@pytest.mark.parametrize(("groups", "rounds"), [(2, 6), (2, 40), (4, 40)])
def test_at_most_5_percent_of_studies_without_a_difference_name_a_winner(
    name: str, groups: int, rounds: int
) -> None:
    decisions = simulate(NO_DIFFERENCE[name], groups, rounds)
    assert sum(each.winner is not None for each in decisions) <= ALPHA * STUDIES
    assert sum(bool(each.excluded) for each in decisions) <= ALPHA * STUDIES


def test_the_best_group_is_rarely_put_out_by_a_slightly_worse_one() -> None:
    def draw(random: np.random.Generator, groups: int, rounds: int) -> NDArray[np.float64]:
        values: NDArray[np.float64] = random.normal(0, 1, (groups, rounds))
        values[0] += 0.05
        return values

    decisions = simulate(draw, 4, 40)
    wrong = [each for each in decisions if "g0" not in each.open]
    assert len(wrong) <= ALPHA * STUDIES
    assert sum(each.winner not in (None, "g0") for each in decisions) <= ALPHA * STUDIES


# (groups, difference in standard deviations): the rounds after which half and four fifths of the studies are
# decided, as in docs/benchmarking.md.
ROUNDS = {(2, 1.0): (21, 34), (2, 2.0): (8, 11), (4, 1.0): (37, 51), (4, 2.0): (13, 16)}


@pytest.mark.parametrize(("groups", "difference"), ROUNDS)
def test_the_rounds_that_a_difference_needs(groups: int, difference: float) -> None:
    def draw(random: np.random.Generator, groups: int, rounds: int) -> NDArray[np.float64]:
        values: NDArray[np.float64] = random.normal(0, 1, (groups, rounds))
        values[0] += difference
        return values

    decisions = simulate(draw, groups, 80, 1000)
    needed = [
        max(lost.rounds for lost in each.excluded) if each.winner == "g0" else np.inf for each in decisions
    ]
    half, most = ROUNDS[groups, difference]
    assert np.quantile(needed, 0.5) == pytest.approx(half, abs=0.05 * half + 0.5)
    assert np.quantile(needed, 0.8) == pytest.approx(most, abs=0.07 * most + 0.5)


def test_groups_are_put_out_one_after_another_and_their_later_values_do_not_count() -> None:
    random = np.random.default_rng(5)
    values = {
        "best": list(9 + random.normal(0, 0.1, 12)),
        "near": list(8.9 + random.normal(0, 0.1, 12)),
        "bad": list(1 + random.normal(0, 0.1, 12)),
    }
    decision = decide(values)
    first = decision.excluded[0]
    assert first.label == "bad" and first.rounds == least_rounds(threshold(3)) < 12
    short = {**values, "bad": values["bad"][: first.rounds]}
    assert decide(short) == decision
    assert decision.lead is not None and (decision.lead.first, decision.lead.second) == decision.open[:2]
    lead = np.subtract(values[decision.open[0]], values[decision.open[1]])
    assert decision.lead.difference == pytest.approx(lead.mean())
    assert decision.lead.interval == difference_interval(lead, threshold(3))
    at_once = decide({label: each[: first.rounds] for label, each in values.items()})
    assert at_once.winner is None and at_once.rounds == first.rounds
    assert set(at_once.open) == {"best", "near"}


def test_more_games_and_groups_raise_the_threshold() -> None:
    assert threshold(2) == pytest.approx(1 / ALPHA)
    assert threshold(4) == pytest.approx(3 / ALPHA)
    assert threshold(4, games=2) == pytest.approx(6 / ALPHA)


def test_too_few_rounds_or_groups_decide_nothing() -> None:
    assert decide({"a": [9.0], "b": [1.0]}) == Decision(1, 20.0, ("a", "b"), (), Lead("a", "b", 8.0, None))
    assert decide({"a": [], "b": []}).rounds == 0
    assert decide({"a": [1.0, 2.0, 3.0]}).winner is None
    failed = decide({"a": [9.0, np.nan, 9.1, 9.2], "b": [1.0, 1.1, np.nan, 1.2]})
    assert failed.rounds == 2 and failed.winner is None
