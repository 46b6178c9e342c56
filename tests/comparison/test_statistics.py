"""Statistics equal calculations by hand, SciPy, or plain loops in this file."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from rlcb.comparison.statistics import (
    Bootstrap,
    area,
    band,
    detectable_difference,
    estimate,
    first_reached,
    holm,
    improvement,
    improvement_over_games,
    interquartile_mean,
    mean_of_means,
    on_grid,
    pooled,
    rising,
    sample_std,
    stratified_interval,
    welch,
    welch_over_games,
)

BOOTSTRAP = Bootstrap(4000, 1)
OURS, THEIRS = [7.0, 7.5, 8.0, 9.0], [4.0, 5.0, 5.5]


class TestSpread:
    def test_sample_std_divides_by_n_minus_1(self) -> None:
        # Deviations of 2, 4, 9 from 5: 9 + 1 + 16 = 26, over 2.
        assert sample_std([2.0, 4.0, 9.0]) == pytest.approx(math.sqrt(13))

    def test_one_seed_has_no_spread_and_no_interval(self) -> None:
        assert sample_std([3.0]) is None
        assert estimate([3.0], BOOTSTRAP, "x") == (3.0, None, None, None, 1)

    def test_missing_values_do_not_count(self) -> None:
        found = estimate([1.0, math.nan, 3.0], BOOTSTRAP, "x")
        assert found is not None and (found.mean, found.n) == (2.0, 2)
        assert estimate([math.nan], BOOTSTRAP, "x") is None


class TestBootstrap:
    def test_interval_of_two_values_is_exact(self) -> None:
        # Means of two draws from {0, 1} are 0, 1/2, 1 with chances 1/4, 1/2, 1/4: the 2.5 % quantile is 0.
        found = estimate([0.0, 1.0], BOOTSTRAP, "x")
        assert found is not None and (found.low, found.high) == (0.0, 1.0)

    def test_interval_equals_the_interval_over_all_possible_resamples(self) -> None:
        values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
        every = np.sort([np.mean(drawn) for drawn in product(values, repeat=5)])  # 3125, equally likely
        found = estimate(values, Bootstrap(200_000, 3), "x")
        assert found is not None and found.low is not None and found.high is not None
        assert found.low == pytest.approx(
            np.quantile(every, 0.025), abs=0.21
        )  # the figures have steps of 0.2
        assert found.high == pytest.approx(np.quantile(every, 0.975), abs=0.21)

    def test_agrees_with_scipy(self) -> None:
        values = np.random.default_rng(5).normal(10, 2, 20)
        reference = stats.bootstrap(
            (values,), np.mean, method="percentile", n_resamples=20_000, random_state=1
        ).confidence_interval
        found = estimate(values, Bootstrap(20_000, 2), "x")
        assert found is not None
        assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.05)

    def test_strata_are_resampled_separately(self) -> None:
        # Within each stratum there is no spread, so no resample can differ from the whole.
        interval = stratified_interval([np.zeros(3), np.ones(3)], mean_of_means, BOOTSTRAP, "x")
        assert interval == (0.5, 0.5)

    def test_a_stratum_of_one_has_no_interval(self) -> None:
        strata = [np.array([1.0, 2.0]), np.array([3.0])]
        assert stratified_interval(strata, mean_of_means, BOOTSTRAP, "x") is None

    def test_interval_depends_only_on_seed_and_name(self) -> None:
        values = np.random.default_rng(0).normal(size=20)
        first = estimate(values, BOOTSTRAP, "a")
        estimate(THEIRS, BOOTSTRAP, "b")
        np.random.seed(0)  # noqa: NPY002
        before = np.random.random()  # noqa: NPY002
        np.random.seed(0)  # noqa: NPY002
        assert estimate(values, BOOTSTRAP, "a") == first
        assert np.random.random() == before  # noqa: NPY002
        assert estimate(values, Bootstrap(4000, 2), "a") != first


class TestAggregates:
    @pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 11])
    def test_interquartile_mean_equals_scipys_trimmed_mean(self, n: int) -> None:
        scores = np.random.default_rng(n).normal(size=n)
        assert float(interquartile_mean(scores)) == pytest.approx(stats.trim_mean(scores, 0.25))

    def test_interquartile_mean_by_hand(self) -> None:
        # A quarter of eight is two: 3, 4, 5, 6 are left of 1 ... 8, in any order.
        assert float(interquartile_mean(np.array([8.0, 3, 100, -50, 4, 5, 6, 1]))) == pytest.approx(4.5)

    def test_pooled_takes_all_runs_of_all_games(self) -> None:
        assert pooled([np.array([1.0, 2.0]), np.array([3.0])]).tolist() == [1.0, 2.0, 3.0]

    def test_mean_of_means_weighs_games_not_runs(self) -> None:
        assert float(mean_of_means([np.array([0.0, 0.0, 0.0]), np.array([1.0])])) == 0.5

    def test_improvement_equals_mann_whitneys_u(self) -> None:
        x, y = np.array([1.0, 3, 3, 7]), np.array([2.0, 3, 5])
        u = stats.mannwhitneyu(x, y).statistic
        assert float(improvement(x, y)) == pytest.approx(u / 12)
        # Pairs by hand: 1 loses all; each 3 beats 2, ties 3; 7 wins all.
        assert float(improvement(x, y)) == pytest.approx((0 + 1.5 + 1.5 + 3) / 12)

    def test_improvement_over_games_is_the_mean(self) -> None:
        strata = [np.array([2.0]), np.array([1.0]), np.array([1.0]), np.array([1.0])]
        assert float(improvement_over_games(strata)) == 0.75


class TestWelch:
    def test_equals_scipy(self) -> None:
        reference = stats.ttest_ind(OURS, THEIRS, equal_var=False)
        interval = reference.confidence_interval(0.95)
        found = welch(OURS, THEIRS)
        assert found is not None
        expected = (reference.statistic, reference.df, reference.pvalue, interval.low, interval.high)
        assert (found.t, found.degrees, found.p, found.low, found.high) == pytest.approx(expected)

    def test_by_hand(self) -> None:
        # Means 2 and 5, variances of the mean 1/3 each: t = -3 / sqrt(2/3), 4 degrees of freedom.
        found = welch([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
        assert found is not None
        assert (found.difference, found.degrees) == pytest.approx((-3.0, 4.0))
        assert found.t == pytest.approx(-3 / math.sqrt(2 / 3))
        assert found.high - found.difference == pytest.approx(2.7764451 * math.sqrt(2 / 3))  # t table, 4 df

    @pytest.mark.parametrize(
        ("ours", "theirs"), [([1.0], [2.0, 3.0]), ([5.0, 5.0], [7.0, 7.0]), ([1.0, math.nan], [1.0, 2.0])]
    )
    def test_is_none_without_two_seeds_or_variance(self, ours: list[float], theirs: list[float]) -> None:
        assert welch(ours, theirs) is None

    def test_one_group_without_variance_is_tested(self) -> None:
        found = welch([10.0, 10.0, 10.0], [1.0, 2.0, 3.0])
        assert found is not None and found.degrees == pytest.approx(2.0)

    def test_over_one_game_it_equals_welchs_test(self) -> None:
        assert welch_over_games([np.array(OURS), np.array(THEIRS)]) == welch(OURS, THEIRS)

    def test_over_games_by_plain_formulas(self) -> None:
        games = [([1.0, 2.0, 4.0], [0.0, 1.0]), ([5.0, 9.0], [4.0, 4.5, 6.0])]
        difference = sum(np.mean(x) - np.mean(y) for x, y in games) / 2
        parts = [(np.var(each, ddof=1) / len(each) / 4, len(each)) for pair in games for each in pair]
        error = math.sqrt(sum(part for part, _ in parts))
        degrees = error**4 / sum(part**2 / (n - 1) for part, n in parts)
        found = welch_over_games([np.array(each) for pair in games for each in pair])
        assert found is not None
        expected = (difference, difference / error, degrees, 2 * stats.t.sf(abs(difference / error), degrees))
        assert (found.difference, found.t, found.degrees, found.p) == pytest.approx(expected)

    def test_holm_by_hand(self) -> None:
        # 0.01 x 3, 0.03 x 2, 0.04 x 1 but never below the one before.
        assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
        assert holm([0.6, 0.9]) == [1.0, 1.0]
        assert holm([]) == []


class TestCurves:
    def test_rising_sorts_drops_nan_and_keeps_the_last_of_equal_x(self) -> None:
        x, y = rising([30.0, 10, 20, 20, math.nan, 40], [3.0, 1, 2, 2.5, 9, math.nan])
        assert x.tolist() == [10, 20, 30] and y.tolist() == [1, 2.5, 3]

    def test_interpolation_never_extends_a_curve(self) -> None:
        found = on_grid(np.array([10.0, 20.0]), np.array([0.0, 5.0]), [9.99, 10, 12, 20, 20.01])
        assert np.isnan(found[[0, 4]]).all() and found[1:4].tolist() == [0.0, 1.0, 5.0]

    def test_empty_curve_is_nan_everywhere(self) -> None:
        assert np.isnan(on_grid(np.empty(0), np.empty(0), [1.0, 2.0])).all()
        x, y = rising([], [])
        assert not x.size and not y.size

    def test_area_by_hand(self) -> None:
        x, y = np.array([0.0, 2.0, 4.0]), np.array([0.0, 4.0, 4.0])
        # From 1 to 3: a trapezoid of 2 and 4 over 1, a rectangle of 4 over 1: 3 + 4, over 2.
        assert area(x, y, 1.0, 3.0) == pytest.approx(3.5)
        assert area(x, y, 0.0, 4.0) == pytest.approx(3.0)

    @pytest.mark.parametrize(("start", "end"), [(-1.0, 3.0), (0.0, 5.0), (2.0, 2.0)])
    def test_no_area_beyond_the_curve(self, start: float, end: float) -> None:
        assert math.isnan(area(np.array([0.0, 4.0]), np.array([1.0, 1.0]), start, end))

    def test_first_reached(self) -> None:
        assert first_reached(np.array([1.0, math.nan, 3.0, 2.0, 3.5]), 3.0) == 2
        assert first_reached(np.array([1.0, math.nan]), 3.0) is None

    def test_band_exists_where_all_runs_do(self) -> None:
        found = band([np.array([[1.0, 2.0, math.nan], [3.0, 6.0, 9.0]])], BOOTSTRAP, "x")
        assert found.mean[:2].tolist() == [2.0, 4.0] and found.n.tolist() == [2, 2, 0]
        assert found.low[:2].tolist() == [1.0, 2.0] and found.high[:2].tolist() == [3.0, 6.0]
        assert np.isnan([found.mean[2], found.low[2], found.high[2]]).all()

    def test_band_equals_the_interval_of_each_point(self) -> None:
        curves = np.random.default_rng(0).normal(size=(5, 3))
        found = band([curves], Bootstrap(50_000, 1), "x")
        for point in range(3):
            alone = estimate(curves[:, point], Bootstrap(50_000, 7), "y")
            assert alone is not None
            ends = (found.low[point], found.high[point])
            assert ends == pytest.approx((alone.low, alone.high), abs=0.03)

    def test_band_over_games_is_the_mean_over_games(self) -> None:
        tables = [np.array([[0.0, 0.0], [2.0, math.nan]]), np.array([[10.0, 20.0], [10.0, 20.0]])]
        found = band(tables, BOOTSTRAP, "x")
        assert found.mean[0] == 5.5 and found.n.tolist() == [2, 0] and math.isnan(found.mean[1])
        # At the first point the first game's mean is 0, 1 or 2, the second's always 10.
        assert (found.low[0], found.high[0]) == (5.0, 6.0) and math.isnan(found.low[1])


class TestDetectableDifference:
    # The guide's table in docs/benchmarking.md, in standard deviations: one pair, and the best of six pairs.
    @pytest.mark.parametrize(("n", "one", "six"), [(2, 5.65, 13.89), (3, 3.07, 5.04), (5, 2.02, 2.83)])
    def test_power_is_four_fifths(self, n: int, one: float, six: float) -> None:
        for tests, expected in ((1, one), (6, six)):
            found = detectable_difference(math.sqrt(2 / n), 2 * n - 2, tests)
            assert found == pytest.approx(expected, abs=0.005)
            critical = stats.t.ppf(1 - 0.025 / tests, 2 * n - 2)
            assert stats.nct.sf(critical, 2 * n - 2, found / math.sqrt(2 / n)) == pytest.approx(0.8, abs=1e-4)
