"""Runs are found and read, and unusable runs are named with the reason."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcb.comparison import runs
from rlcb.comparison.analysis import Options, compare
from rlcb.comparison.folders import find_runs
from rlcb.comparison.groups import group_runs
from rlcb.comparison.lost import LostRun
from rlcb.comparison.runs import Run, Unusable, load_run, load_runs
from rlcb.errors import UsageError
from rlcb.study.folder import missing_runs
from tests.comparison_run_folders import evaluation, line, row, write_run


def rows_file(run: Path) -> Path:
    (path,) = run.glob("logs/*/metrics.jsonl")
    return path


def reason(run: Path) -> str:
    with pytest.raises(Unusable) as caught:
        load_run(run)
    return str(caught.value)


class TestReading:
    def test_columns_and_figures(self, tmp_path: Path) -> None:
        rows = [row(100, 2.0, None), row(200, 4.0, 5.5, **{"system/memory_gb": 2.5})]
        run = load_run(write_run(tmp_path / "run", rows, seed=7))
        assert run.series["timesteps"].tolist() == [100, 200]
        assert math.isnan(run.series["rollout/ep_reward_mean"][0])
        assert run.series["rollout/ep_reward_mean"][1] == 5.5
        assert run.series["system/memory_gb"].tolist() == [1.5, 2.5]
        assert (run.algorithm, run.mode, run.env, run.seed) == ("ppo", "sequential", "procgen-coinrun-v0", 7)
        assert run.status == "completed" and run.notes == ()
        assert run.number("average_fps") == 50.0 and math.isnan(run.number("performance.nothing"))

    def test_keys_in_another_order_and_missing_ones(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", line(5, 6, 1000, 10))
        rows_file(run).write_text(
            '{"time/elapsed_seconds": 1.0, "timesteps": 64}\n{"timesteps": 128, "impala/policy_lag_max": 2}\n'
        )
        series = load_run(run).series
        assert series["timesteps"].tolist() == [64, 128]
        assert series["time/elapsed_seconds"][0] == 1.0 and math.isnan(series["time/elapsed_seconds"][1])

    def test_incomplete_last_line_is_left_out(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", line(5, 6, 1000, 10, count=3))
        with rows_file(run).open("a") as file:
            file.write('{"timesteps": 5000, "upda')
        assert len(load_run(run).series["timesteps"]) == 3

    def test_damaged_line_is_named(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", line(5, 6, 1000, 10, count=3))
        lines = rows_file(run).read_text().splitlines()
        rows_file(run).write_text("\n".join([lines[0], "{]", lines[2]]) + "\n")
        assert reason(run) == "damaged: metrics.jsonl line 2"

    def test_text_instead_of_a_number(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [row(10, 1.0, 2.0, **{"system/memory_gb": "much"})])
        assert reason(run) == "damaged: metrics.jsonl has a value that is not a number"

    @pytest.mark.parametrize("content", ["{", "[]", "null", '{"status": "completed"}', "\x00\xff"])
    def test_damaged_record(self, tmp_path: Path, content: str) -> None:
        run = write_run(tmp_path / "run", line(5, 6, 1000, 10))
        (run / "benchmark_metrics.json").write_bytes(content.encode("latin1"))
        assert reason(run).startswith("damaged: benchmark_metrics.json")

    @pytest.mark.parametrize(
        ("key", "value", "shown"),
        [
            ("hardware", "x", "'x'"),
            ("hardware", [1], "[1]"),
            ("software", ["a"], "['a']"),
            ("performance", 3, "3"),
            ("resource_usage", "much memory, as I said before", "'much memory, as I s"),
        ],
    )
    def test_record_with_parts_that_are_not_dictionaries(
        self, tmp_path: Path, key: str, value: Any, shown: str
    ) -> None:
        run = write_run(tmp_path / "run", line(5, 6, 1000, 10), record={key: value})
        assert reason(run) == f"damaged: benchmark_metrics.json has {key} = {shown}"

    def test_parts_of_a_record_may_be_null(self, tmp_path: Path) -> None:
        parts = dict.fromkeys(("hardware", "software", "performance", "resource_usage"))
        path = write_run(tmp_path / "run", line(5, 6, 1000, 10), record=parts)
        assert math.isnan(load_run(path).number("hardware.ram_gb"))
        assert compare(group_runs([(0, load_run(path))]), Options()).labels == ["PPO sequential"]

    def test_killed_run_with_an_invalid_seed(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", line(5, 6, 1000, 10), settings={"training.seed": "first"})
        (run / "benchmark_metrics.json").unlink()
        assert reason(run) == "no benchmark_metrics.json, and config.yaml has training.seed = 'first'"

    def test_failed(self, tmp_path: Path) -> None:
        assert reason(write_run(tmp_path / "run", line(5, 6, 1000, 10), status="failed")) == (
            "failed after 1,000 timesteps"
        )

    def test_empty(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [], record={"total_timesteps": 0})
        assert reason(run) == "empty: it has written no row"
        (run / "benchmark_metrics.json").unlink()
        assert reason(run) == "empty: it has written no row"

    def test_interrupted_is_used_and_marked(self, tmp_path: Path) -> None:
        run = load_run(write_run(tmp_path / "run", line(5, 6, 1000, 10), status="interrupted"))
        assert run.notes == ("interrupted",) and len(run.series["timesteps"]) == 11

    def test_killed_run_is_used_and_marked(self, tmp_path: Path) -> None:
        path = write_run(tmp_path / "run", line(5, 6, 1000, 10), seed=3)
        (path / "benchmark_metrics.json").unlink()
        run = load_run(path)
        assert (run.status, run.seed, run.algorithm) == ("unfinished", 3, "ppo")
        assert run.number("total_timesteps") == 1000 and run.number("average_fps") == 100.0
        assert run.number("performance.final_reward") == 6.0
        assert run.notes == ("no final record: it still runs or was killed",)

    def test_record_without_rows_is_used_and_marked(self, tmp_path: Path) -> None:
        path = write_run(tmp_path / "run", line(5, 6, 1000, 10))
        rows_file(path).unlink()
        run = load_run(path)
        assert not run.series["timesteps"].size and "no rows" in run.notes[0]

    def test_columns_file_replaces_missing_rows(self, tmp_path: Path) -> None:
        path = write_run(tmp_path / "run", line(5, 6, 1000, 10))
        rows_file(path).unlink()
        columns = {"timesteps": [10, 20], "rollout/ep_reward_mean": [None, 4.0]}
        (path / "metrics.json").write_text(json.dumps(columns))
        series = load_run(path).series
        assert series["timesteps"].tolist() == [10, 20] and series["rollout/ep_reward_mean"][1] == 4.0
        assert np.isnan(series["train/policy_loss"]).all()

    def test_rows_in_a_log_dir_elsewhere(self, tmp_path: Path) -> None:
        settings = {"logging.log_dir": str(tmp_path / "elsewhere")}
        path = write_run(tmp_path / "run", line(5, 6, 1000, 10), settings=settings)
        (path / "logs").rename(tmp_path / "elsewhere")
        assert load_run(path).series["timesteps"][-1] == 1000

    def test_reading_with_several_processes_gives_equal_results(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = [write_run(tmp_path / f"{i}", line(i, i + 1, 1000, 10), seed=i) for i in range(4)]
        paths.append(write_run(tmp_path / "bad", [], record={"total_timesteps": 0}))
        alone = load_runs(paths)
        monkeypatch.setattr(runs, "MANY_BYTES", 0)
        monkeypatch.setattr(runs, "usable_cores", lambda: 2)
        together = load_runs(paths)
        for one, other in zip(alone[:4], together[:4]):
            assert isinstance(one, Run) and isinstance(other, Run) and one.record == other.record
            for key in one.series:
                np.testing.assert_array_equal(one.series[key], other.series[key])
        assert str(alone[4]) == str(together[4]) == "empty: it has written no row"


class TestEvaluations:
    def test_none(self, tmp_path: Path) -> None:
        assert load_run(write_run(tmp_path / "run", line(5, 6, 1000, 10))).evaluation is None

    def test_latest_timestep_then_sampled_then_most_episodes_then_newest(self, tmp_path: Path) -> None:
        path = write_run(tmp_path / "run", line(5, 6, 1000, 10))
        evaluation(path, 1, 1, "a.json", timesteps=500, episodes_per_split=9999)
        evaluation(path, 2, 2, "b.json", deterministic=True, episodes_per_split=500)
        evaluation(path, 3, 3, "c.json", start_time="2026-01-01T01:00:00+00:00")
        evaluation(path, 4, 4, "d.json", start_time="2026-01-02T01:00:00+00:00")
        evaluation(path, 5, 5, "e.json", episodes_per_split=50)
        evaluation(path, 6, 6, "f.json", algorithm="random")
        evaluation(path, 7, 7, "g.json", env="procgen-maze-v0")
        run = load_run(path)
        assert run.evaluation is not None and run.evaluation["splits"]["train"]["mean_reward"] == 4
        assert run.notes == ()

    def test_evaluation_of_an_earlier_checkpoint_is_marked(self, tmp_path: Path) -> None:
        path = write_run(tmp_path / "run", line(5, 6, 1000, 10))
        evaluation(path, 1, 1, timesteps=500)
        assert load_run(path).notes == ("evaluated at 500 of 1,000 timesteps",)

    def test_damaged_evaluation_is_marked(self, tmp_path: Path) -> None:
        path = write_run(tmp_path / "run", line(5, 6, 1000, 10))
        evaluation(path, 1, 1).write_text("{")
        run = load_run(path)
        assert run.evaluation is None and "evaluation left out" in run.notes[0]


class TestFinding:
    def test_below_parents_and_by_globs_each_once(self, tmp_path: Path) -> None:
        a = write_run(tmp_path / "study/deep/a", line(5, 6, 100, 1))
        b = write_run(tmp_path / "study/b", line(5, 6, 100, 1))
        (tmp_path / "study/config.yaml").write_text("algorithms: [ppo]\n")  # of the study: no run
        found = find_runs([str(b), str(tmp_path / "study"), str(tmp_path / "stu*/b")], missing_runs)
        assert found.runs == [(0, b), (1, a)] and found.left_out == []

    def test_a_glob_below_a_folder_with_brackets(self, tmp_path: Path) -> None:
        a = write_run(tmp_path / "study [a]/one", line(5, 6, 100, 1))
        b = write_run(tmp_path / "study [a]/two", line(5, 6, 100, 1))
        found = find_runs([str(tmp_path / "study [a]/*")], missing_runs)
        assert [path for _, path in found.runs] == [a, b]
        assert [path for _, path in find_runs([f"{tmp_path}/stud*/o*"], missing_runs).runs] == [a]

    def test_folder_with_a_configuration_alone_is_an_empty_run(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run/config.yaml").write_text("algorithm: ppo\n")
        ((_, path),) = find_runs([str(tmp_path)], missing_runs).runs
        assert reason(path) == "empty: it has written no row"

    def test_missing_paths_are_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no file or folder matches"):
            find_runs([str(tmp_path / "nothing*")], missing_runs)
        (tmp_path / "empty").mkdir()
        with pytest.raises(UsageError, match="no run in"):
            find_runs([str(tmp_path / "empty")], missing_runs)

    def test_files_and_empty_folders_beside_runs_do_not_stop_a_comparison(self, tmp_path: Path) -> None:
        a = write_run(tmp_path / "a", line(5, 6, 100, 1))
        (tmp_path / "comparison.csv").write_text("row\n")
        (tmp_path / "empty").mkdir()
        expected = [LostRun(tmp_path / "empty", "no run in it")]
        for patterns in (sorted(map(str, tmp_path.iterdir())), [str(tmp_path / "*")]):
            found = find_runs(patterns, missing_runs)
            assert [path for _, path in found.runs] == [a] and found.left_out == expected

    def test_missing_path_is_an_error_even_with_other_runs(self, tmp_path: Path) -> None:
        a = write_run(tmp_path / "a", line(5, 6, 100, 1))
        with pytest.raises(UsageError, match=r"no file or folder matches .*/b$"):
            find_runs([str(a), str(tmp_path / "b")], missing_runs)
        files = [tmp_path / f"{number}.csv" for number in range(5)]
        for file in files:
            file.write_text("")
        with pytest.raises(UsageError, match=r"no run in .*/2.csv and 2 more: give the folder of a run"):
            find_runs(list(map(str, files)), missing_runs)
