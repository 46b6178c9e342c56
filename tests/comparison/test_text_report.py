"""The report's tables are complete, and its methods describe how curves are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.text_report import WIDE, report, terminal
from tests.comparison_run_folders import RunSet, evaluation, line


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """Four groups, so six tests of each figure, with runs whose names are as long as a study makes them."""
    study = RunSet(tmp_path)
    for algorithm in ("ppo", "impala"):
        for mode in ("sequential", "parallel"):
            for seed in (1, 2):
                rows = line(3, 6 + seed, 300_000, 1800)
                path = study.add(rows, algorithm, mode=mode, seed=seed, record={"average_fps": 4321.5 + seed})
                named = path.rename(path.parent / f"{algorithm}_{mode}_starpilot_seed{seed}")
                evaluation(named, 7, 6 + seed)
                study.paths[-1] = named
    return study.compare()


def test_report_shows_every_table_in_one_block(comparison: Comparison) -> None:
    lines = report(comparison).splitlines()
    assert max(map(len, lines)) <= WIDE
    tests = [each for each in lines if each.startswith("First - second")]
    assert len(tests) == 1 and tests[0].split()[-1] == "n"
    runs = [each for each in lines if each.startswith("Run  ")]
    assert len(runs) == 1 and runs[0].endswith("Notes")
    assert any(each.startswith("impala_sequential_starpilot_seed2  IMPALA sequential") for each in lines)
    results = lines[lines.index("All metrics: coinrun") :]
    assert all(label in results[2] for label in ("PPO sequential", "IMPALA parallel"))


def test_terminal_text_fits_its_width(comparison: Comparison) -> None:
    assert max(map(len, terminal(comparison).splitlines())) <= 80


def test_methods_describe_omissions_and_smoothing(comparison: Comparison) -> None:
    text = " ".join(report(comparison).split())
    assert "A group's mean ends where its first completed run ends" in text
    assert "smoothed: each point is the mean over 5% of the axis" in text
    assert "No figure in a table is smoothed" in text
