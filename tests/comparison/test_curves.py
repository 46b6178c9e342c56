"""Drawn curves: smoothing of noisy metrics, and where means end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.curves import (
    POINTS,
    SMOOTH,
    Panel,
    common_seeds,
    game_panels,
    of_mean,
    score_panels,
    smooth,
    smoothed,
)
from rlcb.comparison.statistics import Bootstrap
from tests.comparison_run_folders import RunSet, line, row


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path)


def panel(comparison: Comparison, key: str) -> Panel:
    return next(each for each in game_panels(comparison.games[0], Bootstrap(200, 1)) if each.key == key)


class TestMean:
    def test_it_ends_where_the_first_completed_run_ends(self, study: RunSet) -> None:
        for seed, end in enumerate((1000, 800, 900)):  # returns of 0, 1 and 2; ends of the other group later
            study.add(line(seed, seed, end, end / 10), seed=seed)
        study.add(line(9, 9, 2000, 200), mode="parallel")
        curve = panel(study.compare(), "return").curves[0]
        grid = panel(study.compare(), "return").grid
        shown = np.isfinite(curve.band.mean)
        # The last run to start has its first row at 1000 / 11 timesteps.
        assert [grid[shown][0], grid[shown][-1]] == pytest.approx([1000 / 11, 800], abs=10)
        assert (curve.band.mean[shown] == 1).all() and (curve.band.n[shown] == 3).all()  # no jump anywhere
        longest = grid[np.isfinite(curve.runs[0])][-1]
        assert longest == pytest.approx(1000, abs=10)  # the thin line goes on

    def test_interrupted_runs_have_no_part_in_it(self, study: RunSet) -> None:
        study.add(line(4, 4, 1000, 100), seed=0)
        study.add(line(6, 6, 1000, 100), seed=1)
        study.add(line(9, 9, 300, 30), seed=2, status="interrupted")
        curve = panel(study.compare(), "return").curves[0]
        shown = np.isfinite(curve.band.mean)
        assert (curve.band.mean[shown] == 5).all() and (curve.band.n[shown] == 2).all()
        assert curve.planned == 3 and len(curve.runs) == 3

    def test_without_a_completed_run_it_ends_with_the_first(self, study: RunSet) -> None:
        for seed, end in enumerate((500, 1000)):
            study.add(line(seed, seed, end, end / 10), seed=seed, status="interrupted")
        (curve,) = panel(study.compare(), "return").curves
        shown = np.flatnonzero(np.isfinite(curve.band.mean))
        assert (curve.band.mean[shown] == 0.5).all() and shown[-1] == pytest.approx(POINTS / 2, abs=1)

    def test_choice_by_hand(self) -> None:
        ends = [np.where(np.arange(10) <= end, 1.0, np.nan) for end in (9, 5, 7, 2)]
        assert of_mean(ends, [True, True, False, False]) == [0, 1, 2]
        assert of_mean(ends, [False] * 4) == [0, 1, 2, 3]
        assert of_mean([*ends, np.full(10, np.nan)], [True] * 5) == [0, 1, 2, 3]


class TestSmooth:
    def test_straight_line_changes_only_at_its_ends(self) -> None:
        ramp = np.arange(100.0)
        even = smooth(ramp)
        assert even[5:95] == pytest.approx(ramp[5:95])
        assert even[0] == np.mean(range(6)) and even[99] == np.mean(range(94, 100))

    def test_noise_is_averaged(self) -> None:
        even = smooth(np.tile([1.0, -1.0], 50))
        assert even[10:90] == pytest.approx(np.tile([-1 / SMOOTH, 1 / SMOOTH], 40))

    def test_missing_points_stay_missing(self) -> None:
        values = np.full(60, np.nan)
        values[20:30] = 4.0
        even = smooth(values)
        assert np.isnan(even[:20]).all() and np.isnan(even[30:]).all() and (even[20:30] == 4).all()

    def test_short_and_empty_curves(self) -> None:
        assert smooth(np.array([1.0, 2.0, 6.0])).tolist() == [1.5, 3.0, 4.0]
        assert np.isnan(smooth(np.full(3, np.nan))).all()


class TestPanels:
    def test_noisy_panels_are_smoothed_and_others_are_not(self, study: RunSet) -> None:
        for seed in (0, 1):  # rows at every point of the grid; returns of 4 and 6 in turn, or 2 higher
            rows = [row(100 * i, i, 5 + 2 * seed + (-1) ** i) for i in range(1, POINTS)]
            study.add(rows, seed=seed)
        returns = panel(study.compare(), "return")
        exact, drawn = returns.curves[0].band, smoothed(returns).curves[0].band
        assert exact.mean[1:5].tolist() == [5, 7, 5, 7]
        even = np.array([(-1) ** i / SMOOTH for i in range(20, 180)])
        # The mean of eleven numbers that alternate has the sign of those that there are six of.
        sign = -1 if SMOOTH // 2 % 2 else 1
        assert drawn.mean[20:180] == pytest.approx(6 + sign * even)
        assert drawn.low[20:180] == pytest.approx(5 + sign * even)
        assert drawn.high[20:180] == pytest.approx(7 + sign * even)
        assert smoothed(returns).curves[0].runs[0][20:180] == pytest.approx(5 + sign * even)

    def test_timesteps_start_at_zero(self, study: RunSet) -> None:
        study.add(line(1, 2, 1000, 100, count=10))
        timesteps = panel(study.compare(), "timesteps")
        drawn = smoothed(timesteps).curves[0].band
        assert drawn.mean == pytest.approx(np.linspace(0, 1000, POINTS))

    def test_scores_are_smoothed(self, study: RunSet) -> None:
        for env in ("procgen-coinrun-v0", "procgen-maze-v0"):  # both have a range of 5 to 10
            study.add([row(100 * i, i, 7.5 + 2.5 * (-1) ** i) for i in range(1, POINTS)], env=env)
        first, _ = score_panels(study.compare())
        assert set(first.curves[0].band.mean[1:].round(9)) == {0.0, 1.0}
        assert np.abs(smoothed(first).curves[0].band.mean[20:180] - 0.5).max() == pytest.approx(0.5 / SMOOTH)


def test_seeds_of_all_groups(study: RunSet) -> None:
    study.add_ends({"sequential": [1, 2], "parallel": [1, 2]})
    assert common_seeds(study.compare().results) == 2
    study.add(line(1, 1, 1000, 100), mode="parallel", seed=7)
    assert common_seeds(study.compare().results) is None
