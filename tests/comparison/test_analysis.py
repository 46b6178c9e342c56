"""Metrics at equal timesteps and wall clock, tests and scores equal independent calculations."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rlcb.comparison.analysis import GroupResult
from rlcb.comparison.curves import game_panels, score_panels
from rlcb.comparison.statistics import Bootstrap
from tests.comparison_run_folders import RunSet, evaluation, line, row


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path)


def mean(result: GroupResult, metric: str) -> float:
    found = result.estimates[metric]
    assert found is not None
    return found.mean


def test_equal_timesteps_and_equal_wall_clock_by_hand(study: RunSet) -> None:
    # Sequential: 1,000 timesteps in 100 s, returns 1 to 11 on a line from the first row (100, 10 s).
    study.add(line(1, 11, 1000, 100, count=10), mode="sequential")
    # Parallel: 3,000 timesteps in 100 s, returns 2 to 20 from (300, 10 s).
    study.add(line(2, 20, 3000, 100, count=10), mode="parallel")
    (game,) = study.compare().games
    sequential, parallel = game.groups
    assert game.windows["timesteps"] == (300, 1000) and game.windows["wall_clock"] == (10, 100)
    assert mean(sequential, "return_at_timesteps") == pytest.approx(11)
    # 1,000 is 700 of 2,700 timesteps after the first row: 2 + 18 * 700 / 2,700.
    assert mean(parallel, "return_at_timesteps") == pytest.approx(2 + 18 * 700 / 2700)
    assert mean(parallel, "return_at_wall_clock") == pytest.approx(20)
    # On a line the mean height is that in the middle: of 300 and 1,000 timesteps, of 10 and 100 s.
    assert mean(sequential, "area_timesteps") == pytest.approx(1 + 10 * (650 - 100) / 900)
    assert mean(parallel, "area_timesteps") == pytest.approx(2 + 18 * (650 - 300) / 2700)
    assert mean(sequential, "area_wall_clock") == pytest.approx(6)
    assert mean(parallel, "area_wall_clock") == pytest.approx(11)


def test_speedup_and_efficiency_gain(study: RunSet) -> None:
    study.add(line(1, 2, 1000, 100), mode="sequential", seed=1)
    study.add(line(1, 2, 1400, 100), mode="sequential", seed=2)
    study.add(line(1, 2, 3000, 100), mode="parallel", seed=1)
    (game,) = study.compare().games
    parallel = game.groups[1]
    assert mean(parallel, "speedup") == pytest.approx(30 / 12)
    assert mean(parallel, "efficiency_gain") == pytest.approx(150)
    assert mean(parallel, "timesteps_per_hour") == pytest.approx(3000 / (100 / 3600))
    assert mean(game.groups[0], "speedup") == 1.0
    (other,) = study.compare(baseline="parallel").games
    assert mean(other.groups[0], "speedup") == pytest.approx(12 / 30)


def test_mean_and_std_over_seeds(study: RunSet) -> None:
    for seed, end in enumerate((4.0, 5.0, 9.0)):
        study.add(line(1, end, 1000, 100), seed=seed)
    (game,) = study.compare().games
    found = game.groups[0].estimates["final_reward"]
    assert found is not None and found.n == 3
    assert (found.mean, found.std) == pytest.approx((6.0, math.sqrt(7)))  # 4 + 1 + 9 over 2


def test_interrupted_run_does_not_shorten_the_window(study: RunSet) -> None:
    study.add(line(1, 2, 1000, 100), seed=1)
    study.add(line(1, 2, 200, 20), seed=2, status="interrupted")
    study.add(line(1, 2, 1000, 100), mode="parallel", seed=1)
    (game,) = study.compare().games
    window = game.windows["timesteps"]
    assert window is not None and window.end == 1000
    found = game.groups[0].estimates["return_at_timesteps"]
    assert found is not None and found.n == 1
    assert math.isnan(game.groups[0].values["return_at_timesteps"][1])
    assert game.groups[0].values["final_reward"].tolist() == [2, 2]


def test_group_of_interrupted_runs_alone_counts_up_to_its_longest(study: RunSet) -> None:
    study.add(line(1, 2, 1000, 100), seed=1)
    study.add(line(1, 2, 400, 20), mode="parallel", seed=1, status="interrupted")
    study.add(line(1, 2, 200, 10), mode="parallel", seed=2, status="interrupted")
    (game,) = study.compare().games
    window = game.windows["timesteps"]
    assert window is not None and window.end == 400


def test_evaluations_and_generalisation_gap(study: RunSet) -> None:
    evaluation(study.add(line(1, 2, 1000, 100), seed=1), 8.0, 6.0)
    evaluation(study.add(line(1, 2, 1000, 100), seed=2), 9.0, 6.5)
    (game,) = study.compare().games
    result = game.groups[0]
    assert (mean(result, "train_return"), mean(result, "test_return")) == (8.5, 6.25)
    assert mean(result, "generalisation_gap") == 2.25


def two_groups(
    study: RunSet, ours: list[float], theirs: list[float], env: str = "procgen-coinrun-v0"
) -> None:
    study.add_ends({"sequential": ours, "parallel": theirs}, env=env)


def test_pair_tests_equal_scipy(study: RunSet) -> None:
    ours, theirs = [5.0, 6.0, 6.5], [7.0, 7.2, 6.4]
    two_groups(study, ours, theirs)
    (game,) = study.compare().games
    pair = next(each for each in game.pairs if each.metric == "return_at_wall_clock")
    reference = stats.ttest_ind(ours, theirs, equal_var=False)
    assert pair.welch is not None and pair.improvement is not None
    assert (pair.welch.t, pair.welch.p) == pytest.approx((reference.statistic, reference.pvalue))
    assert pair.improvement.mean == pytest.approx(stats.mannwhitneyu(ours, theirs).statistic / 9)
    assert pair.counts == (3, 3)


def test_scores_over_games(study: RunSet) -> None:
    coinrun = {"sequential": [6.0, 7.0, 8.0], "parallel": [7.0, 8.0, 9.0]}
    starpilot = {"sequential": [10.0, 20.0, 30.0], "parallel": [15.0, 40.0, 41.0]}
    two_groups(study, *coinrun.values())
    two_groups(study, *starpilot.values(), env="procgen-starpilot-v0")
    across = study.compare().across
    assert across is not None and across.games == ["coinrun", "starpilot"]
    for mode, label in (("sequential", "PPO sequential"), ("parallel", "PPO parallel")):
        first = (np.array(coinrun[mode]) - 5) / (10 - 5)
        second = (np.array(starpilot[mode]) - 2.5) / (64 - 2.5)
        found = across.scores["return_at_timesteps"][label]
        assert found.mean.mean == pytest.approx((first.mean() + second.mean()) / 2)
        assert found.iqm.mean == pytest.approx(stats.trim_mean(np.concatenate([first, second]), 0.25))
        assert found.iqm.n == 6 and found.iqm.low is not None and found.iqm.low < found.iqm.mean
    (pair,) = [each for each in across.pairs if each.metric == "final_reward"]
    shares = [
        stats.mannwhitneyu(each["sequential"], each["parallel"]).statistic / 9
        for each in (coinrun, starpilot)
    ]
    assert pair.improvement is not None and pair.improvement.mean == pytest.approx(np.mean(shares))


def test_different_games_are_never_averaged_as_raw_returns(study: RunSet) -> None:
    study.add(line(5, 5, 1000, 100), seed=1)
    study.add(line(50, 50, 1000, 100), seed=1, env="procgen-starpilot-v0")
    comparison = study.compare()
    assert [[mean(g, "final_reward") for g in game.groups] for game in comparison.games] == [[5], [50]]
    assert comparison.across is not None
    score = comparison.across.scores["final_reward"]["PPO sequential"].mean.mean
    assert score == pytest.approx((0 + 47.5 / 61.5) / 2)


def test_scores_need_games_that_all_groups_played(study: RunSet) -> None:
    study.add(line(5, 6, 1000, 100), seed=1)
    study.add(line(5, 6, 1000, 100), mode="parallel", seed=1, env="procgen-maze-v0")
    assert study.compare().across is None
    study.add(line(5, 6, 1000, 100), mode="parallel", seed=1)
    across = study.compare().across
    assert across is not None and across.games == ["coinrun"]


def test_no_scores_without_a_published_range(study: RunSet) -> None:
    study.add(line(5, 6, 1000, 100), env="CartPole-v1")
    study.add(line(5, 6, 1000, 100), env="procgen-maze-v0", settings={"env.distribution_mode": "memory"})
    assert study.compare().across is None


def test_run_without_any_return(study: RunSet) -> None:
    study.add([row(100 * i, i, None) for i in range(1, 5)], seed=1)
    study.add(line(1, 2, 1000, 100), mode="parallel", seed=1)
    (game,) = study.compare().games
    assert game.groups[0].estimates["return_at_timesteps"] is None
    assert game.groups[0].estimates["final_reward"] is None


class TestPanels:
    def test_mean_ends_with_its_runs(self, study: RunSet) -> None:
        study.add(line(2, 2, 1000, 100), seed=1)
        study.add(line(4, 4, 400, 40), seed=2, status="interrupted")
        comparison = study.compare()
        panel = game_panels(comparison.games[0], Bootstrap(200, 1))[0]
        (curve,) = panel.curves
        at = {round(x): i for i, x in enumerate(panel.grid)}  # steps of 5 timesteps
        for timesteps in (400, 405):  # the interrupted run has no part in the mean, but its own line
            assert curve.band.mean[at[timesteps]] == 2 and curve.band.n[at[timesteps]] == 1
        assert curve.runs[1][at[400]] == 4 and math.isnan(curve.runs[1][at[405]])

    def test_slightly_longer_run_does_not_bend_the_mean(self, study: RunSet) -> None:
        study.add(line(2, 2, 1000, 100), seed=1)
        study.add(line(4, 4, 980, 98), seed=2)
        panel = game_panels(study.compare().games[0], Bootstrap(200, 1))[0]
        (curve,) = panel.curves
        shown = np.isfinite(curve.band.mean)
        assert set(curve.band.mean[shown]) == {3.0} and set(curve.band.n) == {0, 2}

    def test_fps_is_timesteps_per_second(self, study: RunSet) -> None:
        rows = [row(100, 1.0, 1), row(300, 2.0, 1), row(700, 4.0, 1)]  # 100, 200, 200 a second
        study.add(rows)
        panel = next(p for p in game_panels(study.compare().games[0], Bootstrap(200, 1)) if p.key == "fps")
        fps = panel.curves[0].band.mean
        assert fps[:50] == pytest.approx(np.full(50, 100.0)) and fps[50:] == pytest.approx(
            np.full(151, 200.0)
        )

    def test_scores_are_the_mean_of_the_games(self, study: RunSet) -> None:
        study.add(line(7.5, 7.5, 1000, 100))
        study.add(line(33.25, 33.25, 1000, 100), env="procgen-starpilot-v0")
        first, _ = score_panels(study.compare())
        shown = np.isfinite(first.curves[0].band.mean)
        assert first.curves[0].band.mean[shown] == pytest.approx(0.5)


def test_run_whose_first_episode_ends_late_does_not_block_the_others(study: RunSet) -> None:
    study.add(line(1, 2, 1000, 100), mode="sequential")
    study.add(line(3, 4, 1000, 100), mode="parallel")
    study.add(
        [row(500 * i, 10.0 * i, 9.0 if i > 5 else None) for i in range(1, 11)], "impala", mode="parallel"
    )
    (game,) = study.compare().games
    found = [result.estimates["return_at_timesteps"] for result in game.groups]
    assert [each and each.mean for each in found] == [2, 4, None]
