"""Scores over games agree with rliable, and with calculations of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rliable import library, metrics
from scipy import stats

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.curves import Panel
from rlcb.comparison.exports import json_data
from rlcb.comparison.scores import (
    improvement_note,
    improvement_rows,
    profile_panel,
    profile_table,
    rliable_data,
    shown_scores,
)
from rlcb.comparison.statistics import Bootstrap
from rlcb.files import strict_json
from tests.comparison_run_folders import RunSet, evaluation, line

GAMES = {"procgen-coinrun-v0": (5, 10), "procgen-starpilot-v0": (2.5, 64), "procgen-maze-v0": (5, 10)}


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path)


def add(study: RunSet, mode: str, env: str, returns: Sequence[float], **changes: Any) -> None:
    """Write runs with these returns on unseen levels and the seeds 0, 1, ..."""
    for seed, value in enumerate(returns):
        evaluation(study.add(line(3, 6, 900, 60), mode=mode, env=env, seed=seed, **changes), value, value)


def drawn(study: RunSet, seeds: dict[str, int]) -> Comparison:
    """Write runs with random scores in all GAMES, and compare them."""
    random = np.random.default_rng(3)
    for place, (mode, count) in enumerate(seeds.items()):
        for env, (low, high) in GAMES.items():
            add(
                study, mode, env, (low + (high - low) * random.normal(0.4 + 0.1 * place, 0.2, count)).tolist()
            )
    return study.compare(bootstrap=Bootstrap(4000, 1))


def exported(comparison: Comparison, tmp_path: Path) -> dict[str, NDArray[np.float64]]:
    """Load the scores as docs/reference.md shows."""
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps(strict_json(json_data(comparison, {}))))
    scores = json.loads(path.read_text())["rliable"]["scores"]["test_return"]
    return {name: np.array(rows) for name, rows in scores.items()}


def profile_of(comparison: Comparison) -> Panel:
    panel = profile_panel(comparison)
    assert panel is not None
    return panel


class TestRliable:
    """rliable reads our export and computes our numbers from it."""

    def test_interquartile_mean_and_its_interval(self, study: RunSet, tmp_path: Path) -> None:
        comparison = drawn(study, {"sequential": 6, "parallel": 6})
        tables = exported(comparison, tmp_path)
        assert {name: table.shape for name, table in tables.items()} == dict.fromkeys(
            ("PPO sequential", "PPO parallel"), (6, 3)
        )
        assert comparison.across is not None
        points, intervals = library.get_interval_estimates(
            tables, lambda scores: np.array([metrics.aggregate_iqm(scores)]), reps=4000
        )
        for name, found in comparison.across.scores["test_return"].items():
            assert found.iqm.mean == pytest.approx(points[name][0], abs=1e-12)
            # Both draw 4,000 resamples of their own, so the ends differ by chance.
            assert [found.iqm.low, found.iqm.high] == pytest.approx(intervals[name][:, 0].tolist(), abs=0.015)

    def test_probability_of_improvement_and_its_interval(self, study: RunSet, tmp_path: Path) -> None:
        comparison = drawn(study, {"sequential": 5, "parallel": 7})
        tables = exported(comparison, tmp_path)
        both = {"x,y": (tables["PPO parallel"], tables["PPO sequential"])}
        points, intervals = library.get_interval_estimates(
            both, metrics.probability_of_improvement, reps=1000
        )
        (row,) = improvement_rows(comparison)
        assert row.label == "PPO parallel > PPO sequential" and row.found is not None
        assert row.found.mean == pytest.approx(float(points["x,y"]), abs=1e-12)
        assert [row.found.low, row.found.high] == pytest.approx(intervals["x,y"].ravel().tolist(), abs=0.04)

    def test_performance_profile_and_its_band(self, study: RunSet, tmp_path: Path) -> None:
        comparison = drawn(study, {"sequential": 5, "parallel": 5})
        panel, every = profile_of(comparison), slice(None, None, 20)
        taus = panel.grid[every]
        profiles, bands = library.create_performance_profile(exported(comparison, tmp_path), taus, reps=1500)
        for curve in panel.curves:
            assert curve.band.mean[every] == pytest.approx(profiles[curve.label], abs=1e-12)
            # A share of 15 runs moves in steps of 1 / 15, and so do the ends of its interval.
            distance = np.abs(np.array([curve.band.low, curve.band.high])[:, every] - bands[curve.label])
            assert distance.max() < 1 / 15 + 1e-9 and distance.mean() < 0.015

    def test_unequal_seeds_leave_out_rows_and_say_so(self, study: RunSet) -> None:
        add(study, "sequential", "procgen-coinrun-v0", [6, 7, 8])
        add(study, "sequential", "procgen-maze-v0", [5.5, 6.5])
        add(study, "parallel", "procgen-coinrun-v0", [9])
        add(study, "parallel", "procgen-maze-v0", [9.5])
        data = rliable_data(study.compare())
        assert data is not None and data["games"] == ["coinrun", "maze"]
        tables = data["scores"]["test_return"]
        assert np.array(tables["PPO sequential"]) == pytest.approx(np.array([[0.2, 0.1], [0.4, 0.3]]))
        assert np.array(tables["PPO parallel"]) == pytest.approx(np.array([[0.8, 0.9]]))
        assert data["left_out"]["test_return"] == {"PPO sequential": {"coinrun": [2]}}

    def test_a_group_without_a_common_seed_has_no_table(self, study: RunSet) -> None:
        add(study, "sequential", "procgen-coinrun-v0", [6])
        evaluation(study.add(line(3, 6, 900, 60), env="procgen-maze-v0", seed=7), 6, 6)
        data = rliable_data(study.compare())
        assert data is not None and data["scores"] == {}
        assert data["left_out"]["test_return"] == {"PPO sequential": {"coinrun": [0], "maze": [7]}}

    def test_games_without_a_common_scale_have_no_scores(self, study: RunSet) -> None:
        for env in ("CartPole-v1", "Acrobot-v1"):
            add(study, "sequential", env, [6, 7])
        comparison = study.compare()
        assert rliable_data(comparison) is None and profile_panel(comparison) is None
        assert profile_table(comparison) is None and improvement_rows(comparison) == []


class TestProfiles:
    def test_share_of_runs_strictly_above_each_score(self, study: RunSet) -> None:
        add(study, "sequential", "CartPole-v1", [10.0, 20.0, 20.0, 30.0])
        comparison = study.compare()
        scores = shown_scores(comparison)
        assert scores is not None and (scores.metric, scores.unit) == ("test_return", "raw return")
        panel = profile_of(comparison)
        (curve,) = panel.curves
        values = np.array([10.0, 20.0, 20.0, 30.0])
        expected = [float(sum(value > tau for value in values)) / 4 for tau in panel.grid]
        assert curve.band.mean.tolist() == expected and (expected[0], expected[-1]) == (1, 0)
        assert panel.grid[0] < 10 and panel.grid[-1] > 30
        table = profile_table(comparison)
        assert table is not None
        assert {row[0]: row[1] for row in table.rows} == {
            "10": "75%",
            "15": "75%",
            "20": "25%",
            "25": "25%",
            "30": "0%",
        }

    def test_each_game_has_equal_weight(self, study: RunSet) -> None:
        add(study, "sequential", "procgen-coinrun-v0", [10.0, 10.0, 10.0])  # all scores are 1
        add(study, "sequential", "procgen-maze-v0", [5.0])  # and here 0
        panel = profile_of(study.compare())
        middle = int(np.abs(panel.grid - 0.5).argmin())
        assert panel.curves[0].band.mean[middle] == 0.5

    def test_without_evaluations_training_returns_count(self, study: RunSet) -> None:
        study.add_ends({"sequential": [5.0, 6.0], "parallel": [7.0, 8.0]})
        scores = shown_scores(study.compare())
        assert scores is not None and scores.metric == "return_at_wall_clock"

    @pytest.mark.parametrize(
        ("games", "count", "words", "bands"),
        [
            (1, 1, "with 1 run it moves in steps of 100%; a band needs 10 runs", False),
            (1, 3, "with 3 runs it moves in steps of 33%; a band needs 10 runs", False),
            (3, 4, "with 4 runs a game, bands are too narrow", True),
            (2, 5, "runs resampled within each game]", True),
        ],
    )
    def test_few_seeds_are_said(self, study: RunSet, games: int, count: int, words: str, bands: bool) -> None:
        for env in list(GAMES)[:games]:
            add(study, "sequential", env, [6.0, 7.0, 8.0, 9.0, 9.5][:count])
        comparison = study.compare()
        table = profile_table(comparison)
        assert table is not None and words in table.note
        assert bool(np.isfinite(profile_of(comparison).curves[0].band.low).any()) == bands
        assert any("\n[" in row[1] for row in table.rows) == bands

    def test_improvement_is_mann_whitneys_u_over_the_pairs(self, study: RunSet) -> None:
        first, second = [6.0, 7.0, 7.5, 8.0, 9.0], [6.5, 7.0, 9.5, 9.8, 9.9, 10.0]
        add(study, "sequential", "procgen-coinrun-v0", first)
        add(study, "parallel", "procgen-coinrun-v0", second)
        (row,) = improvement_rows(study.compare())
        u = stats.mannwhitneyu(second, first).statistic
        assert row.label == "PPO parallel > PPO sequential" and row.found is not None
        assert row.found.mean == pytest.approx(u / 30)
        assert row.found.low is not None and row.found.low < row.found.mean < 1
        assert "an interval needs" not in improvement_note([row])

    def test_improvement_of_few_seeds_has_no_interval_and_says_so(self, study: RunSet) -> None:
        add(study, "sequential", "procgen-coinrun-v0", [6.0, 7.0])
        add(study, "parallel", "procgen-coinrun-v0", [8.0, 9.0])
        rows = improvement_rows(study.compare())
        assert [row.text for row in rows] == ["1.00, n=2 and 2"]
        assert "an interval needs 5 runs" in improvement_note(rows)
