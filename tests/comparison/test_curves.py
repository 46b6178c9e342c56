"""Drawn curves: smoothing of noisy metrics, and trimming of ends with fewer runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.curves import (
    POINTS,
    RAGGED,
    SMOOTH,
    Panel,
    common_seeds,
    game_panels,
    score_panels,
    smooth,
    smoothed,
    trimmed,
)
from rlcb.comparison.statistics import Band, Bootstrap
from tests.comparison_run_folders import RunSet, line, row


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path)


def panel(comparison: Comparison, key: str) -> Panel:
    return next(each for each in game_panels(comparison.games[0], Bootstrap(200, 1)) if each.key == key)


def banded(stretches: list[tuple[int, int]]) -> Band:
    """A band with (n, points) of each stretch; its mean is n, so that it is seen what is left."""
    n = np.concatenate([np.full(points, runs) for runs, points in stretches])
    mean = np.where(n > 0, n, np.nan).astype(np.float64)
    return Band(mean, mean - 0.5, mean + 0.5, n)


def lengths(band: Band) -> dict[int, int]:
    """How many points are left by number of runs."""
    return {int(n): int((band.n == n).sum()) for n in np.unique(band.n) if n}


class TestTrimmed:
    def test_staggered_ends_are_trimmed_once(self) -> None:
        # Seven runs, each of which ends 8 % of the axis after the one before: 16 points, of which 20 may go.
        whole = banded([(7, 101), (6, 16), (5, 16), (4, 16), (3, 16), (2, 16), (1, 16), (0, 4)])
        kept = trimmed(whole)
        assert lengths(kept) == {7: 101, 6: 16, 5: 16, 4: 16, 3: 16, 2: 16}
        shown = np.isfinite(kept.mean)
        assert shown.sum() == 181 and (kept.mean[shown] == kept.n[shown]).all()
        assert np.isnan(kept.low[~shown]).all() and np.isnan(kept.high[~shown]).all()

    def test_trimmed_ends_together_stay_below_the_limit(self) -> None:
        kept = trimmed(banded([(4, 170), (3, 8), (2, 8), (1, 8), (0, 7)]))
        assert lengths(kept) == {4: 170, 3: 8}  # 16 of at most 20 points

    def test_each_end_has_its_own_limit(self) -> None:
        assert lengths(trimmed(banded([(1, 15), (2, 171), (1, 15)]))) == {2: 171}

    def test_long_stretches_stay(self) -> None:
        assert lengths(trimmed(banded([(2, 170), (1, 31)]))) == {2: 170, 1: 31}

    def test_at_most_the_limit_is_trimmed(self, study: RunSet) -> None:
        for seed in range(7):  # end at 0.5, 0.58, ... 0.98 of the longest run, which is of another group
            end = 500 + 80 * seed
            study.add(line(seed, seed, end, end / 10), seed=seed, status="interrupted")
        study.add(line(9, 9, 1000, 100), mode="parallel")
        curve = panel(study.compare(), "return").curves[0]
        last = np.flatnonzero(np.isfinite(curve.band.mean))[-1]
        ends = np.flatnonzero(np.isfinite(curve.runs[-1]))[-1]
        assert ends - last <= RAGGED * POINTS
        assert curve.band.n[last] == 2 and curve.band.mean[last] == pytest.approx(5.5)  # seeds 5 and 6


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
