"""compare_results.py as a user runs it."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from perf import compare_speed
from rlcb.cli.compare import main
from tests import runs
from tests.cli.conftest import FinishedStudy
from tests.comparison_run_folders import curve, evaluation, line, row, write_run


def compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    return runs.call("compare_results.py", *arguments)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    root = tmp_path / "study"
    for mode, fps in (("sequential", 500.0), ("parallel", 900.0)):
        for seed in (1, 2, 3):
            rows = curve(lambda t, s=seed: 5 + 3 * (1 - np.exp(-t / 2e5)) + s / 10, fps, 1000, 60)  # type: ignore[misc]
            run = write_run(root / f"ppo_{mode}_{seed}", rows, mode=mode, seed=seed)
            evaluation(run, 8, 7)
    return root


def test_guides_command_writes_every_file(study: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "comparison.png"
    flags = ["--sequential", study / "ppo_sequential_1", "--parallel", study / "ppo_parallel_1"]
    result = runs.run("compare_results.py", *flags, "--output", output)
    assert result.returncode == 0 and result.stderr == ""
    assert "1.80×" in result.stdout and "+80.0%" not in result.stdout and "±" not in result.stdout
    assert "+80.0%" in (output.parent / "comparison_report.txt").read_text()
    names = {path.name for path in output.parent.iterdir()}
    assert names == {
        "comparison.png",
        "comparison.html",
        "comparison.md",
        "comparison.csv",
        "comparison_curves.csv",
        "comparison.json",
        "comparison_report.txt",
    }
    picture = imread(output)
    assert picture.shape[1] > 1200 and picture[..., :3].std() > 0.02
    for name in names:
        assert name in result.stdout


def test_study_folder_with_all_options(study: Path, tmp_path: Path) -> None:
    output = tmp_path / "c.svg"
    flags = [
        "--baseline",
        "ppo parallel",
        "--threshold",
        "coinrun=7",
        "--reference",
        "--bootstrap-samples",
        300,
    ]
    result = compare("--runs", study, "--output", output, *flags, "--confidence-seed", 5)
    assert result.returncode == 0, result.stderr
    data = json.loads((tmp_path / "c.json").read_text())
    assert data["baseline"] == "PPO parallel" and data["bootstrap"] == {"samples": 300, "seed": 5}
    assert data["thresholds"] == {"coinrun": 7.0} and data["reference"]["games"]
    groups = data["games"]["procgen-coinrun-v0"]["groups"]
    assert [(group["label"], group["n"]) for group in groups] == [("PPO sequential", 3), ("PPO parallel", 3)]
    assert groups[0]["metrics"]["speedup"]["mean"] == pytest.approx(5 / 9, rel=1e-3)
    assert output.read_text().startswith("<?xml")
    again = json.loads((tmp_path / "c.json").read_text())
    compare("--runs", study, "--output", output, *flags, "--confidence-seed", 5)
    assert {**again, "created": 0} == {**data, "created": 0}


def test_several_games_have_a_plot_each(study: Path, tmp_path: Path) -> None:
    for mode in ("sequential", "parallel"):
        write_run(study / f"maze_{mode}", line(3, 6, 9000, 90), mode=mode, env="procgen-maze-v0")
    result = compare("--runs", str(study / "*"), "--output", tmp_path / "c.png")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "c_coinrun.png").exists() and (tmp_path / "c_maze.png").exists()
    text = (tmp_path / "c_report.txt").read_text()
    assert "raw returns are compared within a game only" in " ".join(text.split())
    with (tmp_path / "c.csv").open() as file:
        assert {each["game"] for each in csv.DictReader(file)} == {"coinrun", "maze"}


def test_template_prints_the_sheet(study: Path, tmp_path: Path) -> None:
    result = compare("--runs", study, "--template", "--output", tmp_path / "c.png")
    assert result.returncode == 0 and "BENCHMARK RESULTS - [Test CPU, 2 cores]" in result.stdout
    assert (tmp_path / "c_sheet.txt").read_text().rstrip() in result.stdout


def test_bad_runs_are_named_and_the_others_compared(study: Path, tmp_path: Path) -> None:
    write_run(study / "failed", line(1, 2, 10, 1), status="failed")
    write_run(study / "empty", [], record={"total_timesteps": 0})
    (study / "ppo_parallel_2/benchmark_metrics.json").write_text("{")
    write_run(study / "cut", line(1, 2, 100_000, 200), seed=9, status="interrupted")
    result = compare("--runs", study, "--output", tmp_path / "c.png", "--full")
    assert result.returncode == 0
    for name, reason in (("failed", "failed after"), ("empty", "empty"), ("ppo_parallel_2", "damaged")):
        assert any(name in each and reason in each for each in result.stderr.splitlines())
    assert "cut: interrupted" in result.stdout
    page = (tmp_path / "c.html").read_text()
    assert "ppo_parallel_2: damaged" in page and "cut: interrupted" in page


def test_what_a_shell_makes_of_a_glob_is_compared(study: Path, tmp_path: Path) -> None:
    for name in ("comparison.csv", "comparison.png"):
        (study / name).write_text("of an earlier comparison")
    (study / "configs").mkdir()
    (study / "study.yaml").write_text("algorithms: [ppo]\nenvs: [coinrun]\nseeds: [1]\n")
    (study / "nothing").mkdir()
    result = compare("--runs", *sorted(study.iterdir()), "--output", tmp_path / "c.png")
    assert result.returncode == 0
    left_out = result.stderr.splitlines()
    assert left_out == [
        f"left out: {study / 'nothing'}: no run in it",
        f"left out: {study / 'ppo_sequential_coinrun_seed1'}: the run has not started",
        f"left out: {study / 'ppo_parallel_coinrun_seed1'}: the run has not started",
    ]
    assert f"{study / 'nothing'}: no run in it" in (tmp_path / "c.md").read_text().replace("\\", "")
    data = json.loads((tmp_path / "c.json").read_text())
    assert {each["reason"] for each in data["skipped"]} == {"no run in it", "the run has not started"}
    # A shell names ppo_parallel_1 first; of a whole study the order is that of the study's folder.
    assert data["baseline"] == "PPO sequential"


def test_runs_that_its_speed_is_measured_with_are_compared(tmp_path: Path) -> None:
    count = compare_speed.write_runs(tmp_path / "runs", rows=30, seeds=2)
    assert compare_speed.compare(tmp_path / "runs", tmp_path / "out" / "comparison.png") > 0
    data = json.loads((tmp_path / "out/comparison.json").read_text())
    groups = [group for game in data["games"].values() for group in game["groups"]]
    assert count == sum(group["n"] for group in groups) == 20 and data["skipped"] == []
    assert {len(group["seeds"]) for group in groups} == {2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no runs are given"),
        (["--runs", "nowhere"], "no file or folder matches nowhere"),
        (["--runs", "{bad}"], "no run can be used"),
        (["--runs", "{study}", "--baseline", "dqn"], "--baseline dqn: names no group"),
        (["--runs", "{study}", "--output", "x.jpg"], "must end in one of .png, .svg, .pdf"),
        (["--runs", "{study}", "--threshold", "high"], "--threshold high"),
        (["--runs", "{study}", "--bootstrap-samples", "5"], "--bootstrap-samples 5"),
        (["--runs", "{study}", "--confidence-seed", "-1"], "--confidence-seed -1"),
        (["--parallel", "{study}/ppo_sequential_1"], "is a sequential run"),
        (["--runs", "{study}", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(
    study: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = write_run(tmp_path / "bad", [], record={"total_timesteps": 0})
    output = ["--output", str(tmp_path / "c.png")] if "--output" not in arguments else []
    code = main([*(each.format(study=study, bad=bad) for each in arguments), *output])
    errors = [each for each in capsys.readouterr().err.splitlines() if not each.startswith("left out")]
    assert code == 2 and len(errors) == 1 and message in errors[0]
    assert not (tmp_path / "c.png").exists() and not (tmp_path / "c.json").exists()


def test_folder_that_cannot_be_written_is_one_line_and_code_1(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--runs", str(study), "--output", str(tmp_path / "file/c.png")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_help_names_every_flag_at_once() -> None:
    result = compare("--help")
    assert result.returncode == 0
    for flag in (
        "--sequential",
        "--parallel",
        "--runs",
        "--baseline",
        "--threshold",
        "--reference",
        "--template",
    ):
        assert flag in result.stdout


def test_real_runs_of_all_kinds_of_rows(tmp_path: Path) -> None:
    """Rows as asynchronous workers and actors write them: unequal steps, keys of their own."""
    uneven = [
        row(t, t / 50, 5 + t / 1000, **{"async/gradient_age_mean": 1.5})
        for t in (64, 90, 300, 301, 900, 2000)
    ]
    write_run(tmp_path / "s/a3c", uneven, "a3c", "parallel")
    lagged = [row(t, t / 70, 5 + t / 900, **{"impala/policy_lag_mean": 0.5}) for t in (100, 200, 900, 2100)]
    write_run(tmp_path / "s/impala", lagged, "impala", "distributed")
    result = compare("--runs", tmp_path / "s", "--output", tmp_path / "c.pdf")
    assert result.returncode == 0, result.stderr
    assert "A3C parallel" in result.stdout and "IMPALA distributed" in result.stdout


@pytest.mark.slow
def test_real_training_runs(
    finished_study: FinishedStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--runs", str(finished_study.root), "--output", str(tmp_path / "c.png")]) == 0
    out = capsys.readouterr().out
    assert "PPO sequential" in out and "n=2" in out and "CartPole" in out
