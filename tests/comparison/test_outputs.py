"""Every output contains the same results, n, differences and source of normalisation."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from rlcb.comparison.analysis import Comparison, Options, compare
from rlcb.comparison.curves import Panel, game_panels, score_panels
from rlcb.comparison.exports import json_data
from rlcb.comparison.figure import draw_game, draw_games
from rlcb.comparison.groups import group_runs
from rlcb.comparison.lost import LostRun
from rlcb.comparison.page import page
from rlcb.comparison.runs import load_run
from rlcb.comparison.statistics import Bootstrap
from rlcb.comparison.summary import summary
from rlcb.comparison.tables import Table, across_table
from rlcb.comparison.text_report import layout, main_tables, markdown, report, terminal
from rlcb.files import strict_json
from tests.comparison_run_folders import RunSet, evaluation, line, write_run

UNEQUAL = "num_envs: 64 in PPO sequential; 128 in PPO parallel"
SOURCE = "openai/train-procgen, train_procgen/constants.py"


def analysed(
    tmp_path: Path, envs: tuple[str, ...] = ("procgen-coinrun-v0",), seeds: int = 2, **options: Any
) -> Comparison:
    paths = []
    for env in envs:
        for mode, speed in (("sequential", 1), ("parallel", 2)):
            for seed in range(seeds):
                settings = {"env.num_envs": 64 * speed}
                name = f"{mode}_{env}_{seed}"
                rows = line(3 + seed, 6 + seed, 300_000 * speed, 1800, count=40)
                paths.append(
                    write_run(tmp_path / name, rows, mode=mode, env=env, seed=seed, settings=settings)
                )
                evaluation(paths[-1], 7 + seed, 6 + seed)
    options.setdefault("bootstrap", Bootstrap(200, 1))
    return compare(
        group_runs([(0, load_run(path)) for path in paths]),
        Options(**options),
        [LostRun(Path("bad"), "damaged")],
    )


def panels_of(comparison: Comparison) -> dict[str, list[Panel]]:
    panels = {game.env: game_panels(game, comparison.options.bootstrap) for game in comparison.games}
    return {**panels, "": score_panels(comparison)}


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    return analysed(tmp_path, thresholds={"": 6.5}, reference=True)


def flat(text: str) -> str:
    return " ".join(text.split())


class TestText:
    def test_terminal_text_fits_80_columns_and_is_complete(self, comparison: Comparison) -> None:
        text = terminal(comparison, full=True)
        assert max(map(len, text.splitlines())) <= 80
        for part in (UNEQUAL, "bad: damaged", "n=2", "Speedup", "2.00×", "+100.0%", "Published PPO: coinrun"):
            assert part in flat(text)

    def test_terminal_has_units_and_the_source_of_the_scores(self, comparison: Comparison) -> None:
        rows = [row[0] for table in main_tables(comparison) for row in table.rows]
        assert "Average CPU (%)" in rows and {"Speedup", "Efficiency gain"} < {*rows}
        assert f"0 is no skill, 1 the maximum, by the ranges of {SOURCE}" in flat(
            terminal(comparison, full=True)
        )

    @pytest.mark.parametrize(("seeds", "trims"), [(3, False), (4, True)])
    def test_interquartile_mean_is_shown_if_it_differs_from_the_mean(
        self, tmp_path: Path, seeds: int, trims: bool
    ) -> None:
        table = across_table(analysed(tmp_path, seeds=seeds))
        assert table is not None and table.title == "Procgen-normalised scores: coinrun"
        names = [row[0] for row in table.rows]
        assert "Final reward\n(mean)" in names and ("Final reward\n(IQM)" in names) == trims
        assert ("IQM: mean of the middle half" in table.note) == trims
        assert ("of fewer than 4 runs is their mean" in table.note) != trims

    def test_several_games_are_named_and_trimmed_over_all(self, tmp_path: Path) -> None:
        table = across_table(analysed(tmp_path, ("procgen-coinrun-v0", "procgen-maze-v0")))
        assert table is not None
        assert table.title == "Procgen-normalised scores over 2 games (coinrun, maze)"
        assert "Final reward\n(IQM)" in [row[0] for row in table.rows]  # of two seeds in each game

    def test_report_has_tests_and_methods(self, comparison: Comparison) -> None:
        text = flat(report(comparison))
        for part in (
            "Tests: coinrun",
            "Where the time went: coinrun",
            SOURCE,
            "coinrun easy 5 to 10",
            UNEQUAL,
        ):
            assert part in text

    def test_one_seed_has_no_standard_deviation(self, tmp_path: Path) -> None:
        text = terminal(analysed(tmp_path, seeds=1), full=True)
        assert "6.00" in text and "±" not in text.split("How the figures")[0].replace("mean ± sample", "")
        assert "A group with one seed has no interval" in flat(text)

    def test_blocks_repeat_the_names(self) -> None:
        table = Table(
            "T", ["", *(f"column {i}" for i in range(9))], [["name", *("1.00 ± 0.10" for _ in range(9))]]
        )
        lines = layout(table, 60)
        assert max(map(len, lines)) <= 60 and sum(each.startswith("name") for each in lines) == 3

    def test_markdown_tables_have_equal_rows_and_hold_no_markup(self, comparison: Comparison) -> None:
        comparison.results[0].group.runs[0].record["status"] = "a|b<script>"
        text = markdown(comparison, "my plot.png")
        assert "![Comparison](my%20plot.png)" in text and "<script>" not in text
        assert "a\\|b" in text and UNEQUAL.replace("_", "\\_") in text and "## Not equal" in text
        for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
            counts = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
            assert len(counts) == 1

    def test_reference_table_holds_the_published_figures(self, comparison: Comparison) -> None:
        text = flat(terminal(comparison, full=True))
        assert "4.73 ± 0.42 (n=3)" in text and "arXiv:1912.01588" in text
        assert "PPO parallel: num_envs 128 (published 64)" in text
        # On a line from (7,500, 3 + seed) to (300,000, 6 + seed), at 100,000.
        assert f"{3.5 + 3 * 92.5 / 292.5:.2f} ± 0.71 (n=2)" in text

    def test_no_reference_for_other_modes(self, tmp_path: Path) -> None:
        path = write_run(tmp_path / "run", line(1, 2, 10, 1), settings={"env.distribution_mode": "hard"})
        found = compare(group_runs([(0, load_run(path))]), Options(reference=True))
        assert "No published figures exist for coinrun" in flat(terminal(found, full=True))


class TestSummary:
    def test_is_complete(self, comparison: Comparison) -> None:
        text = summary(comparison)
        assert "BENCHMARK RESULTS - [Test CPU, 2 cores]" in text and max(map(len, text.splitlines())) <= 80
        for part in ("MACHINE", "SETTINGS", "WINNERS: coinrun", "CONCLUSION", UNEQUAL):
            assert part in flat(text)

    def test_claims_no_winner_without_a_test(self, tmp_path: Path) -> None:
        text = flat(summary(analysed(tmp_path, seeds=1)))
        assert "no winner shown" in text and "is best" not in text and "is faster than" not in text


class TestData:
    def test_json_has_the_tests(self, tmp_path: Path) -> None:
        runs = RunSet(tmp_path)
        first, second = [5.0, 6.0, 6.5], [7.0, 7.2, 6.4]
        for env in ("procgen-coinrun-v0", "procgen-maze-v0"):
            runs.add_ends({"sequential": first, "parallel": second}, env=env)
        data = json_data(runs.compare(), {})
        pairs = data["games"]["procgen-coinrun-v0"]["pairs"]
        pair = next(each for each in pairs if each["metric"] == "final_reward")
        assert (pair["first"], pair["second"], pair["n"]) == ("PPO sequential", "PPO parallel", [3, 3])
        reference = stats.ttest_ind(first, second, equal_var=False)
        interval = reference.confidence_interval(0.95)
        expected = {
            "difference": sum(first) / 3 - sum(second) / 3,
            "low": interval.low,
            "high": interval.high,
            "t": reference.statistic,
            "degrees": reference.df,
            "p": reference.pvalue,
        }
        assert pair["welch"] == pytest.approx(expected, abs=1e-9)
        assert pair["p_holm"] == pytest.approx(reference.pvalue)
        better = pair["probability_of_improvement"]
        assert better["mean"] == pytest.approx(1 / 9) and better["ci95"] is None  # 6.5 beats 6.4; three seeds
        scores = next(each for each in data["over_games"]["pairs"] if each["metric"] == "final_reward")
        # Both games have a range of 5 above 5.
        assert scores["welch"]["difference"] == pytest.approx(expected["difference"] / 5)
        assert scores["n"] == [6, 6]

    def test_json_is_strict_and_complete(self, comparison: Comparison) -> None:
        text = json.dumps(strict_json(json_data(comparison, panels_of(comparison))), allow_nan=False)
        data = json.loads(text)
        assert data["normalisation"] == {"source": SOURCE, "ranges": {"coinrun easy": [5, 10]}}
        game = data["games"]["procgen-coinrun-v0"]
        assert game["equal"]["timesteps"]["end"] == 300_000 and game["equal"]["wall_clock"]["end"] == 1800
        first = game["groups"][0]
        assert first["metrics"]["final_reward"] == {"mean": 6.5, "std": 0.5**0.5, "ci95": [6, 7], "n": 2}
        assert (
            first["runs"][0]["metrics"]["train_return"] == 7 and first["threshold"]["timesteps"]["hits"] == 1
        )
        assert data["skipped"] == [{"path": "bad", "reason": "damaged", "seed": None}]
        assert {"aspect": "total environments", "text": UNEQUAL} in data["fairness"]
        assert data["reference"]["games"]["coinrun"]["train_mean"][0] == 4.73

    def test_one_seed_is_null(self, tmp_path: Path) -> None:
        found = analysed(tmp_path, seeds=1)
        group = json_data(found, {})["games"]["procgen-coinrun-v0"]["groups"][0]
        assert group["metrics"]["final_reward"] == {"mean": 6, "std": None, "ci95": None, "n": 1}


class TestFigure:
    def test_names_units_and_words(self, comparison: Comparison) -> None:
        game = comparison.games[0]
        figure = draw_game(comparison, game, panels_of(comparison)[game.env])
        figure.draw_without_rendering()
        words = " ".join(text.get_text().replace("\n", " ") for text in figure.axes[0].texts)
        assert "PPO sequential" in words and "PPO parallel" in words
        assert [ax.get_xlabel() for ax in figure.axes][:2] == ["minutes of wall clock", "timesteps"]
        assert any("total environments" in text.get_text() for text in figure.texts)
        assert any("n=2 seeds each" in text.get_text() for text in figure.texts)

    def test_several_games_show_scores(self, tmp_path: Path) -> None:
        found = analysed(tmp_path, ("procgen-coinrun-v0", "procgen-maze-v0"))
        figure = draw_games(found, panels_of(found))
        figure.draw_without_rendering()
        titles = [ax.get_title(loc="left") for ax in figure.axes]
        assert titles[:2] == [f"Normalised score over {clock}" for clock in ("wall clock", "timesteps")]
        assert titles[2:] == ["FPS: coinrun", "Normalised score: unseen levels"]

    def test_scores_of_one_game_are_not_drawn_for_all(self, tmp_path: Path) -> None:
        found = analysed(tmp_path, ("procgen-coinrun-v0", "CartPole-v1"))
        titles = [ax.get_title(loc="left") for ax in draw_games(found, panels_of(found)).axes]
        assert titles[0].startswith("Episode return: ") and titles[3].startswith("Return: ")

    def test_games_without_scores_are_drawn_side_by_side(self, tmp_path: Path) -> None:
        found = analysed(tmp_path, ("CartPole-v1", "Acrobot-v1"))
        figure = draw_games(found, panels_of(found))
        titles = [ax.get_title(loc="left") for ax in figure.axes]
        assert titles[:2] == ["Episode return: Acrobot-v1", "Episode return: CartPole-v1"]


class TestPage:
    def test_needs_no_network_and_holds_the_tables(self, comparison: Comparison) -> None:
        text = page(comparison, panels_of(comparison))
        assert not re.findall(
            r"""(?:src|href)=["'](?!#)|@import|url\((?!#|\$)|https?://(?!www\.w3\.org/2000/svg)""", text
        )
        for part in (UNEQUAL, "bad: damaged", SOURCE, "prefers-color-scheme: dark", "@media print"):
            assert part in html.unescape(text)

    def test_names_cannot_become_markup(self, tmp_path: Path) -> None:
        evil = "</script><script>alert(1)</script><b>"
        path = write_run(tmp_path / "run", line(1, 2, 10, 1), env=evil, record={"hardware.cpu_model": evil})
        found = compare(group_runs([(0, load_run(path))]), Options())
        text = page(found, panels_of(found))
        assert evil not in text and text.count("<script") == 2 and "alert(1)</script>" not in text

    def test_many_groups_and_runs_stay_small(self, tmp_path: Path) -> None:
        paths = [
            write_run(
                tmp_path / f"{n}_{seed}",
                line(1, 2, 1000, 100, count=300),
                seed=seed,
                settings={"training.n_epochs": n},
            )
            for n in range(1, 18)
            for seed in range(3)
        ]
        found = compare(
            group_runs([(0, load_run(path)) for path in paths]), Options(bootstrap=Bootstrap(100, 1))
        )
        assert len(page(found, panels_of(found)).encode()) < 3_000_000
        figure = draw_game(found, found.games[0], panels_of(found)[found.games[0].env])
        assert len(figure.legends) == 1 and len(figure.legends[0].get_texts()) == 17
