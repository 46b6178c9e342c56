"""Failed, killed and missing runs stay in sight in every output."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlcb.cli.compare import main
from rlcb.comparison.analysis import Comparison
from rlcb.comparison.findings import findings
from rlcb.comparison.lost import LostRun, identify
from rlcb.comparison.tables import overview_table
from rlcb.comparison.text_report import terminal
from tests.comparison_run_folders import RunSet, evaluation, line, write_run

COINRUN = "procgen-coinrun-v0"


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path / "runs")


def planned(comparison: Comparison) -> dict[str, int]:
    return comparison.games[0].planned


class TestIdentity:
    def test_from_the_record(self, tmp_path: Path) -> None:
        path = write_run(tmp_path / "a", line(1, 2, 10, 1), "impala", "parallel", seed=4, status="failed")
        assert identify(path, "failed")[:6] == (path, "failed", "impala", "parallel", COINRUN, 4)

    @pytest.mark.parametrize("record", [None, "{", '{"config": 3}', "[1]"])
    def test_from_the_configuration(self, tmp_path: Path, record: str | None) -> None:
        path = write_run(tmp_path / "a", line(1, 2, 10, 1), "impala", "parallel", seed=4)
        (path / "benchmark_metrics.json").unlink()
        if record is not None:
            (path / "benchmark_metrics.json").write_text(record)
        assert identify(path, "damaged")[2:6] == ("impala", "parallel", COINRUN, 4)

    def test_unknown(self, tmp_path: Path) -> None:
        assert identify(tmp_path, "empty") == LostRun(tmp_path, "empty")

    @pytest.mark.parametrize(
        ("reason", "state"),
        [
            ("failed after 3 timesteps", "failed"),
            ("the run has not started", "not started"),
            ("the run ended before it wrote its configuration: x", "failed"),
            ("damaged: metrics.jsonl line 3", "damaged"),
            ("no benchmark_metrics.json, and x", "lost"),
        ],
    )
    def test_state(self, reason: str, state: str) -> None:
        assert LostRun(Path("x"), reason).state == state


class TestGroups:
    def test_lost_runs_belong_to_the_group_with_their_settings(self, study: RunSet) -> None:
        for epochs in (1, 2):
            study.add(line(1, 2, 1000, 100), seed=1, settings={"training.n_epochs": epochs})
        failed = write_run(
            study.root / "x", line(1, 2, 10, 1), seed=2, settings={"training.n_epochs": 2}, status="failed"
        )
        counts = planned(study.compare(lost=[identify(failed, "failed")]))
        assert counts == {"PPO sequential, n_epochs 1": 1, "PPO sequential, n_epochs 2": 2}

    def test_planned_runs_belong_to_the_group_beside_them(self, study: RunSet) -> None:
        study.add(line(1, 2, 1000, 100), seed=1)
        lost = [LostRun(study.root / "x", "the run has not started", "ppo", "sequential", COINRUN, 2)]
        assert planned(study.compare(lost=lost)) == {"PPO sequential": 2}

    def test_a_repeated_seed_is_not_lost(self, study: RunSet) -> None:
        study.add(line(1, 2, 1000, 100), seed=1)
        failed = write_run(study.root / "x", line(1, 2, 10, 1), seed=1, status="failed")
        assert planned(study.compare(lost=[identify(failed, "failed")])) == {"PPO sequential": 1}

    def test_a_group_can_lose_all_runs(self, study: RunSet) -> None:
        study.add(line(1, 2, 1000, 100), seed=1)
        lost = [LostRun(study.root / f"x{n}", "failed", "a3c", "parallel", COINRUN, n) for n in (1, 2)]
        assert planned(study.compare(lost=lost)) == {"PPO sequential": 1, "A3C parallel": 2}

    def test_other_settings_are_another_group(self, study: RunSet, tmp_path: Path) -> None:
        study.add(line(1, 2, 1000, 100), seed=1)
        settings = {"training.n_epochs": 9}
        failed = write_run(tmp_path / "else", line(1, 2, 10, 1), seed=2, settings=settings, status="failed")
        counts = planned(study.compare(lost=[identify(failed, "failed")]))
        assert counts == {"PPO sequential": 1, "PPO sequential, other settings": 1}

    def test_unidentified_runs_are_only_listed(self, study: RunSet) -> None:
        study.add(line(1, 2, 1000, 100), seed=1)
        comparison = study.compare(lost=[LostRun(Path("bad"), "damaged")])
        assert planned(comparison) == {"PPO sequential": 1}
        assert any("bad: damaged" in each.text for each in comparison.fairness)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A study of three groups with four seeds: one whole, one lacks a failed and a missing run, one all."""
    root = tmp_path / "study"
    matrix: dict[str, Any] = {"algorithms": ["ppo", "a2c", "a3c"], "modes": ["parallel"], "envs": ["coinrun"]}
    (root / "configs").mkdir(parents=True)
    (root / "study.yaml").write_text(yaml.safe_dump({**matrix, "seeds": [1, 2, 3, 4]}))
    for algorithm in matrix["algorithms"]:
        (root / f"configs/{algorithm}_parallel.yaml").write_text(f"algorithm: {algorithm}\n")
    for algorithm, seeds in (("ppo", 4), ("a2c", 3)):
        for seed in range(1, seeds + 1):
            status = "failed" if (algorithm, seed) == ("a2c", 3) else "completed"
            name = f"{algorithm}_parallel_coinrun_seed{seed}"
            path = write_run(
                root / name, line(5, 6 + seed / 9, 9000, 100), algorithm, "parallel", seed=seed, status=status
            )
            evaluation(path, 6, 5 + seed)
    return root


def test_every_output_and_every_finding_says_two_of_four(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "c.png"
    assert main([str(broken), "--output", str(output), "--bootstrap-samples", "100", "--template"]) == 0
    sheet = " ".join(capsys.readouterr().out.split())
    data = json.loads(output.with_suffix(".json").read_text())
    (game,) = data["games"].values()
    assert [(g["label"], g["n"], g["planned"]) for g in game["groups"]] == [
        *(("PPO parallel", 4, 4), ("A2C parallel", 2, 4))
    ]
    assert [run["reason"] for run in game["groups"][1]["lost"]] == [
        *("failed after 9,000 timesteps", "the run has not started")
    ]
    assert [(g["label"], g["planned"]) for g in game["lost_groups"]] == [("A3C parallel", 4)]
    cautions = [each["caution"] for each in data["findings"]]
    assert len(cautions) == 4
    assert set(cautions) == {"Lost seeds bias this: A2C parallel has 2 of 4 and A3C parallel has 0 of 4."}
    texts = [sheet, data["answer"]]
    texts += [(tmp_path / f"c{end}").read_text() for end in ("_report.txt", ".md", ".html")]
    for text in texts:
        flat = " ".join(text.split())
        assert "A2C parallel has 2 of 4 and A3C parallel has 0 of 4" in flat
    with output.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    states = Counter((row["group"], row["status"]) for row in rows)
    assert states["PPO parallel", "completed"] == 4 and states["A2C parallel", "completed"] == 2
    assert states["A2C parallel", "failed"] == states["A2C parallel", "not started"] == 1
    assert sum(n for (group, _), n in states.items() if group == "A3C parallel") == 4 and len(rows) == 12


def test_the_short_table_has_all_groups_with_seeds_and_states(study: RunSet) -> None:
    for seed in (1, 2):
        evaluation(study.add(line(5, 6, 9000, 100), seed=seed), 6, 5 + seed)
    study.add(line(5, 6, 900, 10), seed=3, status="interrupted")
    lost = [LostRun(study.root / "x", "failed after 3 timesteps", "ppo", "sequential", COINRUN, 4)]
    lost += [
        LostRun(study.root / "y", "the run has not started", "impala", "parallel", COINRUN, n) for n in (1, 2)
    ]
    comparison = study.compare(lost=lost)
    table = overview_table(comparison.games[0])
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.header == ["", "PPO sequential", "IMPALA parallel"]
    assert rows["Seeds"] == ["2 of 4", "0 of 2"]
    assert rows["Status"] == ["2 completed\n1 interrupted\n1 failed", "not started"]
    assert rows["Unseen levels"][0].endswith("n=2 of 4") and rows["Unseen levels"][1] == "n/a"
    assert all("bias" in each.caution for each in findings(comparison))
    assert "2 of 4 seeds completed (seed 3 interrupted; seed 4: failed after 3 timesteps)" in " ".join(
        terminal(comparison).split()
    )
