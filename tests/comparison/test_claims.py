"""A winner is claimed only if a test confirms it, for every metric, with margin and interval."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from scipy import stats

from rlcb.comparison.analysis import Comparison, Pair
from rlcb.comparison.findings import findings, headline, rank_in_game
from rlcb.comparison.metrics import BY_KEY, TESTED
from rlcb.comparison.summary import summary, winner_text
from rlcb.comparison.tables import pairs_table
from tests.comparison_run_folders import RunSet, evaluation, line, row

SEQUENTIAL, PARALLEL = "PPO sequential", "PPO parallel"


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path)


def pair_of(comparison: Comparison, metric: str) -> Pair:
    (pair,) = [pair for pair in comparison.games[0].pairs if pair.metric == metric]
    return pair


def said(comparison: Comparison, metric: str) -> str:
    """What the sheet says of one figure."""
    game = comparison.games[0]
    ranking = rank_in_game(game, metric)
    assert ranking is not None
    return winner_text(ranking, [pair for pair in game.pairs if pair.metric == metric], BY_KEY[metric])


def flat(text: str) -> str:
    return " ".join(text.split())


class TestHeadlines:
    def test_a_winner_needs_a_test(self, study: RunSet) -> None:
        study.add_ends({"sequential": [5.0, 5.1, 5.2], "parallel": [9.0, 9.1, 9.2]})
        ranking = rank_in_game(study.compare().games[0], "return_at_wall_clock")
        assert ranking is not None and ranking.leader == PARALLEL and ranking.won
        assert ranking.margin == pytest.approx(4.0)
        assert "PPO parallel is best" in headline(study.compare())[0]

    def test_overlapping_groups_have_no_winner(self, study: RunSet) -> None:
        study.add_ends({"sequential": [5.0, 7.0, 9.0], "parallel": [6.0, 8.0, 9.5]})
        text = headline(study.compare())[0]
        assert "no clear winner; PPO parallel is ahead" in text and "not distinguishable from" in text

    def test_one_seed_per_group_has_no_winner(self, study: RunSet) -> None:
        study.add_ends({"sequential": [5.0], "parallel": [9.0]})
        comparison = study.compare()
        assert "no clear winner" in headline(comparison)[0] and "no test against" in headline(comparison)[0]
        speed = findings(comparison)[-1]
        assert speed.claim == "no group is faster than PPO sequential"

    def test_equal_means_have_no_winner(self, study: RunSet) -> None:
        study.add_ends({"sequential": [5.0, 7.0], "parallel": [6.0, 6.0]})
        assert ": no winner." in headline(study.compare())[0]

    def test_many_pairs_are_adjusted(self, study: RunSet) -> None:
        # A pair alone has p = 0.03; as one of three it is not enough.
        study.add_ends({"sequential": [1.0, 2, 3], "parallel": [3.6, 4.6, 5.2], "distributed": [0.0, 5, 9]})
        (game,) = study.compare().games
        pair = next(each for each in game.pairs if each.metric == "return_at_timesteps")
        assert pair.welch is not None and pair.p_adjusted == pytest.approx(3 * pair.welch.p)
        assert pair.welch.p < 0.05 < pair.p_adjusted


class TestMargins:
    # Both groups have a variance of 0.01, so the error of the difference is sqrt(0.02 / 3) with 4 degrees of
    # freedom, of which Student's 97.5 % is 2.7764: 2 ± 0.2267.
    LOW, HIGH = [1.0, 1.1, 1.2], [3.0, 3.1, 3.2]

    def memory(self, study: RunSet, used: dict[str, list[float]]) -> Comparison:
        for mode, each in used.items():
            for seed, gigabytes in enumerate(each):
                record = {"resource_usage.peak_memory_gb": gigabytes}
                study.add(line(5, 6, 1000, 100), mode=mode, seed=seed, record=record)
        return study.compare()

    def test_margin_of_the_least_memory(self, study: RunSet) -> None:
        comparison = self.memory(study, {"sequential": self.LOW, "parallel": self.HIGH})
        text = "PPO sequential, ahead of PPO parallel by 2.00 [1.77, 2.23] GB (p < 0.001 against every other "
        text += "group)"
        assert said(comparison, "peak_memory_gb") == text
        assert f"Peak memory: {text}" in flat(summary(comparison))
        better = pair_of(comparison, "peak_memory_gb").improvement
        assert better is not None and better.mean == 1.0  # all of the first need less

    def test_margin_of_the_least_memory_in_the_second_group(self, study: RunSet) -> None:
        comparison = self.memory(study, {"sequential": self.HIGH, "parallel": self.LOW})
        assert said(comparison, "peak_memory_gb").startswith(
            "PPO parallel, ahead of PPO sequential by 2.00 [1.77, 2.23] GB (p < 0.001"
        )
        better = pair_of(comparison, "peak_memory_gb").improvement
        assert better is not None and better.mean == 0.0

    @pytest.mark.parametrize("leads", [SEQUENTIAL, PARALLEL])
    def test_margin_of_the_highest_return(self, study: RunSet, leads: str) -> None:
        ends = [self.HIGH, self.LOW] if leads == SEQUENTIAL else [self.LOW, self.HIGH]
        study.add_ends(dict(zip(("sequential", "parallel"), ends)))
        assert "by 2.00 [1.77, 2.23] raw return (p < 0.001" in said(study.compare(), "final_reward")
        assert said(study.compare(), "final_reward").startswith(f"{leads}, ahead of")

    def test_without_a_test_there_is_no_interval_and_no_winner(self, study: RunSet) -> None:
        comparison = self.memory(study, {"sequential": [1.0, 1.0], "parallel": [3.0, 3.0]})
        assert said(comparison, "peak_memory_gb") == (
            "no winner shown: PPO sequential is ahead of PPO parallel by 2.00 GB, but no test against PPO "
            "parallel (a test needs two seeds each and some variance)"
        )

    def test_groups_without_a_value_are_named(self, study: RunSet) -> None:
        study.add_ends({"sequential": self.LOW, "parallel": self.HIGH, "distributed": [1.0]})
        for path, score in zip(study.paths, (1.0, 1.1, 1.2, 3.0, 3.1, 3.2)):
            evaluation(path, score, score)
        text = said(study.compare(), "test_return")
        assert text.endswith("(p < 0.001 against the others); no value: PPO distributed")

    def test_margin_over_games_is_of_mean_scores(self, study: RunSet) -> None:
        study.add_ends({"sequential": [6.0, 7, 8], "parallel": [7.0, 8, 9]})
        study.add_ends({"sequential": [10.0, 20, 30], "parallel": [15.0, 40, 41]}, env="procgen-starpilot-v0")
        text = flat(summary(study.compare()))
        # Coinrun's means differ by 1 of 5, starpilot's by 12 of 61.5.
        margin = (1 / 5 + 12 / 61.5) / 2
        assert f"{margin:.3f}" == "0.198"
        assert "WINNERS OVER 2 GAMES: mean of normalised scores" in text
        assert "PPO parallel is ahead of PPO sequential by 0.198 [" in text


def test_every_tested_metric_has_a_line(study: RunSet) -> None:
    for mode, end in (("sequential", 6.0), ("parallel", 7.0)):
        for seed in range(2):
            evaluation(study.add(line(5, end + seed, 1000, 100), mode=mode, seed=seed), 7, 6 + seed)
    text = flat(summary(study.compare(thresholds={"": 5.5})))
    winners = text[text.index("WINNERS: coinrun") : text.index("NOT EQUAL")]
    same = {  # figures that say the same as others
        "speedup",
        "timesteps_per_hour",
        "efficiency_gain",
        "average_memory_gb",
    }
    assert set(TESTED) == {key for key, metric in BY_KEY.items() if metric.better} - same
    for key in set(TESTED) - {"full_return"}:  # no run here was trained on all levels
        assert f"{BY_KEY[key].title}: " in winners, key


class TestProbabilities:
    def better(self, study: RunSet, first: list[float], second: list[float]) -> tuple[float, bool]:
        study.add_ends({"sequential": first, "parallel": second})
        found = pair_of(study.compare(), "final_reward").improvement
        assert found is not None and (found.low is None) == (found.high is None)
        return found.mean, found.low is not None

    def test_five_seeds_each_have_an_interval(self, study: RunSet) -> None:
        first, second = [1.0, 2, 3, 4, 5], [2.5, 3.5, 4.5, 5.5, 0.5]
        share = stats.mannwhitneyu(first, second).statistic / 25
        assert self.better(study, first, second) == (pytest.approx(share), True)

    def test_fewer_seeds_have_no_interval(self, study: RunSet) -> None:
        assert self.better(study, [1.0, 2, 3, 4, 5], [0.5, 2.5, 3.5, 4.5])[1] is False

    def test_equal_resamples_have_no_interval(self, study: RunSet) -> None:
        assert self.better(study, [6.0, 7, 8, 9, 9.5], [1.0, 2, 3, 4, 5]) == (1.0, False)

    def test_two_seeds_are_shown_without_an_interval(self, study: RunSet) -> None:
        study.add_ends({"sequential": [8.0, 9.0], "parallel": [5.0, 5.5]})
        comparison = study.compare()
        table = pairs_table(comparison.games[0].pairs, "Tests", comparison.baseline)
        assert table.header[-2] == "P(first better) [95 %]"
        rows = {row[0].split("\n")[0]: row for row in table.rows}
        assert rows["Final reward"][-2] == "1.00"


class TestTimeToThreshold:
    def add(self, study: RunSet, mode: str, ats: list[int]) -> None:
        """Runs of 100 s that reach a return of 9 after so many seconds; 0: never."""
        for seed, at in enumerate(ats):
            rows = [row(100 * i, 10.0 * i, 9.0 if at and 10 * i >= at else 1.0) for i in range(1, 11)]
            study.add(rows, mode=mode, seed=seed)

    def test_shortest_time_wins(self, study: RunSet) -> None:
        self.add(study, "sequential", [70, 80, 90])
        self.add(study, "parallel", [10, 20, 30])
        comparison = study.compare(thresholds={"": 8.0})
        # Variances of 100 square seconds: 60 ± 2.7764 * sqrt(200 / 3) seconds.
        half = 2.7764 * math.sqrt(200 / 3)
        low, high = ((60 + sign * half) / 3600 for sign in (-1, 1))
        assert said(comparison, "hours_to_threshold").startswith(
            f"PPO parallel, ahead of PPO sequential by {60 / 3600:.4f} [{low:.4f}, {high:.4f}] h (p = 0.002"
        )

    def test_group_with_a_seed_that_never_reached_it_has_no_mean(self, study: RunSet) -> None:
        self.add(study, "sequential", [70, 80, 0])
        self.add(study, "parallel", [10, 20, 30])
        comparison = study.compare(thresholds={"": 8.0})
        sequential = comparison.games[0].groups[0]
        assert sequential.estimates["hours_to_threshold"] is None
        assert sequential.values["timesteps_to_threshold"][:2].tolist() == [700, 800]
        assert said(comparison, "hours_to_threshold") == (
            "no winner: PPO parallel is the only group; did not reach it with every seed: PPO sequential"
        )
