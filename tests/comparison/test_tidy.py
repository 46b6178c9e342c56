"""The tidy tables hold one row for each run, also for lost ones, and one for each logged update."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from rlcb.comparison.lost import identify
from rlcb.comparison.metrics import BY_KEY
from rlcb.comparison.runs import load_run
from rlcb.comparison.tidy import CURVE_COLUMNS, FINAL_COLUMNS, curves_text, finals, finals_text
from tests.comparison_run_folders import RunSet, evaluation, line, row, write_run

NAMES = ("run", "group", "algorithm", "mode", "game", "seed")


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path)


class TestFinals:
    def test_one_row_for_each_run_with_its_figures(self, study: RunSet) -> None:
        for mode, end in (("sequential", 6.0), ("parallel", 8.0)):
            evaluation(study.add(line(3, end, 900, 60), mode=mode, seed=4), train=9, test=7.5)
        comparison = study.compare(thresholds={"": 5.0})
        first, second = read(finals_text(comparison))
        assert [first[name] for name in NAMES] == [
            *(str(study.paths[0]), "PPO sequential", "ppo", "sequential", "coinrun", "4")
        ]
        expected = {"final_reward": 6, "test_return": 7.5, "train_return": 9, "average_fps": 15}
        expected |= {"timesteps": 900, "seconds": 60, "num_levels": 200, "usable_cores": 2, "ram_gb": 16}
        expected |= {"final_reward_normalised": (6 - 5) / 5, "test_return_normalised": (7.5 - 5) / 5}
        # Row i of 11 is at 900 i / 11 timesteps with the return 3 + 3 (i - 1) / 10: 5 from row 8 on.
        expected |= {"timesteps_to_threshold": round(900 * 8 / 11)}
        assert {name: float(first[name]) for name in expected} == pytest.approx(expected)
        assert (first["status"], second["status"], first["full_return"]) == ("completed", "completed", "")
        assert second["mode"] == "parallel" and float(second["final_reward"]) == 8

    def test_columns_are_the_documented_metrics(self) -> None:
        assert len(set(FINAL_COLUMNS)) == len(FINAL_COLUMNS)
        assert BY_KEY.keys() - set(FINAL_COLUMNS) == {"duration_hours", "speedup", "efficiency_gain"}

    def test_lost_runs_have_their_status_and_no_figures(self, study: RunSet, tmp_path: Path) -> None:
        study.add(line(3, 6, 900, 60), seed=1)
        failed = identify(
            write_run(tmp_path / "failed", line(1, 2, 9, 1), seed=2), "failed after 9 timesteps"
        )
        other = identify(
            write_run(tmp_path / "other", [], "impala", "parallel", "CartPole-v1", seed=3), "empty: none"
        )
        unknown = identify(tmp_path / "nothing", "no run in it")
        found, *lost = finals(study.compare([failed, other, unknown]))
        assert found["status"] == "completed"
        assert [tuple(each[name] for name in (*NAMES, "status", "notes")) for each in lost] == [
            *[
                (
                    str(failed.path),
                    "PPO sequential",
                    "ppo",
                    "sequential",
                    "coinrun",
                    2,
                    "failed",
                    failed.reason,
                )
            ],
            *[
                (
                    str(other.path),
                    "IMPALA parallel",
                    "impala",
                    "parallel",
                    "CartPole-v1",
                    3,
                    "empty",
                    other.reason,
                )
            ],
            (str(unknown.path), None, None, None, None, None, "lost", "no run in it"),
        ]
        assert all(each[key] is None for each in lost for key in ("final_reward", "timesteps", "seconds"))

    def test_two_difficulties_of_a_game_are_two_games(self, study: RunSet) -> None:
        for mode in ("easy", "hard"):
            study.add(line(3, 6, 900, 60), settings={"env.distribution_mode": mode})
        assert {each["game"] for each in finals(study.compare())} == {"coinrun easy", "coinrun hard"}


class TestCurves:
    def test_one_row_for_each_logged_update(self, study: RunSet) -> None:
        rows = [row(128, 0.5, None), row(256, 1.25, 3.5), row(12_345_678, 2.0, -1 / 3)]
        study.add(rows, seed=1)
        study.add(rows[:2], mode="parallel", env="nan, 100%-v0", seed=2)
        text = curves_text(study.compare())
        assert tuple(text.splitlines()[0].split(",")) == CURVE_COLUMNS
        found = read(text)
        assert [tuple(each[name] for name in NAMES) for each in found] == [
            *[(str(study.paths[0]), "PPO sequential", "ppo", "sequential", "coinrun", "1")] * 3,
            *[(str(study.paths[1]), "PPO parallel", "ppo", "parallel", "nan, 100%-v0", "2")] * 2,
        ]
        assert [(each["timesteps"], each["seconds"]) for each in found[:3]] == [
            *[("128", "0.5"), ("256", "1.25"), ("12345678", "2")]
        ]
        assert [each["return"] for each in found] == ["", "3.5", "-0.3333333333", "", "3.5"]

    def test_runs_without_rows_have_none(self, study: RunSet) -> None:
        study.add([], record={"total_timesteps": 100})
        assert read(curves_text(study.compare())) == []
        assert len(finals(study.compare())) == 1

    def test_the_curves_are_those_that_are_compared(self, study: RunSet) -> None:
        study.add(line(3, 6, 900, 60))
        found, run = read(curves_text(study.compare())), load_run(study.paths[0])
        assert [float(each["return"]) for each in found] == pytest.approx(
            run.series["rollout/ep_reward_mean"].tolist()
        )
