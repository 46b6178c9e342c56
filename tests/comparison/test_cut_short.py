"""Interrupted runs: what they show counts, what they cannot show is left out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rlcb.comparison.format import reached_text
from rlcb.comparison.metrics import TIME_AXES
from rlcb.comparison.summary import summary
from rlcb.comparison.tables import results_table
from rlcb.comparison.tidy import finals
from tests.comparison_run_folders import RunSet, evaluation, line, row


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path)


def rows(rewards: list[float], episodes: list[int] | None = None) -> list[dict[str, Any]]:
    counts = episodes or [500] * len(rewards)
    return [
        row(100 * i, 10.0 * i, reward, **{"rollout/episodes": count})
        for i, (reward, count) in enumerate(zip(rewards, counts), 1)
    ]


class TestThreshold:
    def test_by_hand(self, study: RunSet) -> None:
        # The first 9 is the mean of too few episodes.
        study.add(rows([9, 5, 8, 9], [3, 90, 120, 150]), seed=1)
        study.add(rows([1, 8.5, 7, 9], [100, 120, 140, 160]), seed=2)
        study.add(rows([1, 2, 3, 4], [100, 120, 140, 160]), seed=3)
        (game,) = study.compare(thresholds={"coinrun": 8.0}).games
        times = game.groups[0].reached
        assert times["timesteps"][1:4] == (2, 3, 300.0) and times["timesteps"].each == (300.0, 200.0, None)
        assert times["wall_clock"].median == pytest.approx(30 / 3600)
        (never,) = study.compare(thresholds={"": 8.8}).games
        assert never.groups[0].reached["timesteps"].hits == 2  # 9 and 9, at the end
        (half,) = study.compare(thresholds={"": 9.5}).games
        assert half.groups[0].reached["timesteps"][1:4] == (0, 3, None)
        assert study.compare(thresholds={"maze": 8.0}).games[0].groups[0].reached == {}

    def test_no_median_if_half_of_the_seeds_never_reached_it(self, study: RunSet) -> None:
        study.add(line(1, 9, 1000, 100), seed=1)
        study.add(line(1, 2, 1000, 100), seed=2)
        (game,) = study.compare(thresholds={"": 8.0}).games
        assert game.groups[0].reached["timesteps"].median is None

    def test_seeds_interrupted_before_it_are_counted_apart(self, study: RunSet) -> None:
        study.add(rows([1, 1, 9, 9, 9, 9]), seed=1)
        study.add(rows([1, 1, 1, 1, 9, 9]), seed=2)
        for seed in (3, 4, 5):
            study.add(rows([1]), seed=seed, status="interrupted")
        (game,) = study.compare(thresholds={"": 8.0}).games
        found = game.groups[0].reached["timesteps"]
        assert (found.hits, found.n, found.median, found.stopped) == (2, 2, 400.0, 3)
        assert reached_text(TIME_AXES[0], found) == "400 timesteps (2 of 2, 3 stopped before)"
        mean = game.groups[0].estimates["timesteps_to_threshold"]
        assert mean is not None and (mean.mean, mean.n) == (400.0, 2)

    def test_seed_interrupted_after_it_counts(self, study: RunSet) -> None:
        study.add(rows([1, 1, 9, 9]), seed=1)
        study.add(rows([1, 9]), seed=2, status="interrupted")
        (game,) = study.compare(thresholds={"": 8.0}).games
        assert game.groups[0].reached["timesteps"][1:] == (2, 2, 250.0, (300.0, 200.0), 0)

    def test_group_interrupted_before_it_has_no_result(self, study: RunSet) -> None:
        study.add(rows([1, 2]), seed=1, status="interrupted")
        (game,) = study.compare(thresholds={"": 8.0}).games
        assert (
            reached_text(TIME_AXES[1], game.groups[0].reached["wall_clock"]) == "not known (1 stopped before)"
        )

    def test_run_with_one_row_is_shown_in_every_output(self, study: RunSet) -> None:
        study.add(rows([5]))  # no curve, so no area under one
        comparison = study.compare(thresholds={"": 5.0})
        table = {each[0].split("\n")[0]: each[1] for each in results_table(comparison.games[0]).rows}
        assert table["Timesteps to a return of 5"] == "100 timesteps (1 of 1)"
        assert table["Time to a return of 5"] == "10 seconds (1 of 1)"
        assert "Time to a return of 5: 10 seconds" in " ".join(summary(comparison).split())
        (run,) = finals(comparison)
        assert run["timesteps_to_threshold"] == 100
        assert run["hours_to_threshold"] == pytest.approx(10 / 3600)


class TestMetricsOfWholeRuns:
    def add(self, study: RunSet) -> None:
        study.add(line(1, 6, 1000, 100), seed=1)
        study.add(line(1, 8, 1200, 120), seed=2)
        evaluation(study.add(line(1, 2, 200, 40), seed=3, status="interrupted"), 1, 1)
        evaluation(study.paths[0], 6, 5)

    def test_use_completed_runs(self, study: RunSet) -> None:
        self.add(study)
        result = study.compare().games[0].groups[0]
        for key, mean, n in (("final_reward", 7, 2), ("timesteps", 1100, 2), ("test_return", 5, 1)):
            found = result.estimates[key]
            assert found is not None and (found.mean, found.n) == (mean, n), key
        assert result.values["final_reward"].tolist() == [6, 8, 2]  # of each run all the same
        assert result.normalised["final_reward"][:2].tolist() == pytest.approx([0.2, 0.6])
        assert math.isnan(result.normalised["final_reward"][2])
        speed = result.estimates["average_fps"]
        assert speed is not None and (speed.mean, speed.n) == (pytest.approx((10 + 10 + 5) / 3), 3)

    def test_tests_use_completed_runs(self, study: RunSet) -> None:
        self.add(study)
        study.add(line(1, 4, 1000, 100), mode="parallel", seed=1)
        study.add(line(1, 5, 1000, 100), mode="parallel", seed=2)
        counts = {pair.metric: pair.counts for pair in study.compare().games[0].pairs}
        assert counts["final_reward"] == (2, 2) and counts["average_fps"] == (3, 2)

    def test_are_marked(self, study: RunSet) -> None:
        self.add(study)
        comparison = study.compare()
        table = results_table(comparison.games[0])
        cells = {each[0]: each[1].split("\n")[0] for each in table.rows}
        assert cells["Final reward (raw return)"] == "7.00 ± 1.41 (n=2 of 3)"
        assert "completed runs only" in table.note
        assert "(n=3, seeds 1, 2, 3 (interrupted))" in summary(comparison)

    def test_group_without_completed_runs_uses_interrupted_ones(self, study: RunSet) -> None:
        study.add(line(1, 6, 1000, 100), seed=1, status="interrupted")
        table = results_table(study.compare().games[0])
        cells = {each[0]: each[1] for each in table.rows}
        assert cells["Final reward (raw return)"] == "6.00 (interrupted)"
        assert cells["Average FPS (timesteps/s)"] == "10.0"

    def test_are_not_marked_if_all_runs_completed(self, study: RunSet) -> None:
        study.add(line(1, 6, 1000, 100))
        table = results_table(study.compare().games[0])
        assert "completed runs only" not in table.note
        assert not any("(interrupted)" in row[1] for row in table.rows)
