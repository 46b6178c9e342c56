"""What a tuning prints: the plan and its cost, the time left, and the tables with their numbers."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from rlcb.text import COLUMNS, clock
from rlcb.tuning import console
from rlcb.tuning.console import (
    START_SECONDS,
    TuningProgress,
    print_plan,
    print_results,
    seconds_left,
    trial_line,
)
from rlcb.tuning.folder import open_tuning
from rlcb.tuning.results import best_of
from rlcb.tuning.search import TrialResult
from rlcb.tuning.settings import build_tuning
from rlcb.tuning.space import search_space


def trial(algorithm: str, number: int, state: str, score: float | None, *seconds: float) -> TrialResult:
    runs = {
        f"coinrun_seed{seed}": {"status": "completed", "seconds": each, "timesteps": 1000}
        for seed, each in enumerate(seconds, 1)
    }
    reason = "coinrun_seed1: the parameters are not finite" if state == "failed" else ""
    settings = {"training.learning_rate": 0.001 * (number + 1), "training.n_steps": 16}
    return TrialResult(algorithm, number, state, score, settings, reason, runs)


TRIALS = [
    trial("ppo", 0, "complete", 0.125, 360.0, 360.0),
    trial("ppo", 1, "failed", None, 90.0),
    trial("ppo", 2, "pruned", 0.9, 100.0),
    trial("ppo", 3, "complete", 0.25, 300.0, 420.0),
    trial("impala", 0, "failed", None, 36.0),
    trial("impala", 1, "running", None),
]
TWO_SEEDS: dict[str, Any] = {"algorithms": ["ppo", "impala"], "trials": 5, "seeds": [1, 2], "duration": 0.1}


def test_the_plan_names_effort_and_cost_in_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = open_tuning(tmp_path / "t", {**TWO_SEEDS, "envs": ["starpilot", "coinrun"]})
    print_plan(folder, {"ppo": search_space(folder.base_config("ppo"), ())})
    text = capsys.readouterr().out
    assert "5 trials for each algorithm, 4 runs each, 0:06:00 of wall clock for a run" in " ".join(
        text.split()
    )
    hours = 2 * 5 * 4 * (360 + START_SECONDS) / 3600
    shown = re.search(r"40 runs in all, at most (\d+):(\d\d):(\d\d)", text)
    assert shown is not None
    assert int(shown[1]) + int(shown[2]) / 60 + int(shown[3]) / 3600 == pytest.approx(hours)
    lines = [line for line in text.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= COLUMNS


def test_the_tables_show_counts_hours_scores_and_failures_in_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = open_tuning(tmp_path / "t", TWO_SEEDS)
    print_results(folder, TRIALS)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= COLUMNS
    cells = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in text.splitlines() if "│" in line}
    hours = sum([360, 360, 90, 100, 300, 420]) / 3600
    assert [cell.strip() for cell in cells["PPO"]] == ["2", "1", "1", f"{hours:.2f}", "0.125", "0.250", "4"]
    assert [cell.strip() for cell in cells["IMPALA"]] == ["0", "0", "1", "0.01", "n/a", "n/a", "n/a"]
    assert [cell.strip() for cell in cells["training.learning_rate"]] == ["0.001", "0.004"]
    assert "IMPALA: no trial is complete, so there are no settings" in text
    assert "failed: PPO trial 2: coinrun_seed1: the parameters are not finite" in text
    assert "failed: IMPALA trial 1:" in text


def test_the_progress_names_the_share_the_time_left_and_the_current_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "LINE_INTERVAL_SECONDS", 0.0)
    folder = open_tuning(tmp_path / "t", TWO_SEEDS)
    row = {"rollout/ep_reward_mean": 7.25, "time/fps_average": 1234.5}
    config = folder.base_config("impala")
    TuningProgress().show(folder.tuning, TRIALS[:5], config, 1, 1.25, [row])
    left = ((5 - 4) * 2 + (5 - 1) * 2 - 1.25) * (360 + START_SECONDS)
    share = (5 + 1.25 / 2) / 10
    line = f"{share:4.0%} of the tuning, {clock(left)} left · impala 2/5 coinrun · 1,234 FPS · return 7.25"
    assert capsys.readouterr().out.strip() == line.strip()


def test_a_note_says_when_the_window_is_too_short_for_the_best_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = open_tuning(tmp_path / "t", {"algorithms": ["ppo"], "duration": 0.1})
    for is_short in (True, False):
        best = trial("ppo", 0, "complete", 0.5, 360.0)
        best.runs["coinrun_seed1"]["is_short"] = is_short
        print_results(folder, [best])
        text = " ".join(capsys.readouterr().out.split())
        assert ("note coinrun_seed1: fewer episodes ended" in text) == is_short


def test_the_best_trial_is_complete_and_the_earlier_of_two_equal_ones() -> None:
    best = best_of([*TRIALS, trial("ppo", 4, "complete", 0.25, 1.0)], "ppo")
    assert best is not None and best.default is not None
    assert (best.trial.number, best.default.score) == (3, 0.125)
    assert best_of(TRIALS, "impala") is None


def test_a_line_about_a_trial_says_how_it_ended() -> None:
    assert trial_line(TRIALS[0], 5) == "PPO    trial   1/5  complete  score 0.125  0:12:00 (default settings)"
    assert trial_line(TRIALS[1], 5).endswith("FAILED: coinrun_seed1: the parameters are not finite")


def test_the_time_left_of_timed_runs_counts_every_run_that_is_left() -> None:
    tuning, ended = build_tuning(TWO_SEEDS, "t"), TRIALS[:5]
    runs = (5 - 4) * 2 + (5 - 1) * 2 - 1.25  # the second run of IMPALA's second trial is at a quarter
    assert seconds_left(tuning, ended, "impala", 1.25) == pytest.approx(runs * (360 + START_SECONDS))


def test_the_time_left_of_runs_in_timesteps_comes_from_completed_runs() -> None:
    given = {**TWO_SEEDS, "duration": None, "total_timesteps": 5000}
    tuning = build_tuning(given, "t")
    assert seconds_left(tuning, [], "ppo", 0.5) is None
    ended = [trial("ppo", 0, "complete", 1.0, 30.0, 50.0)]
    one = statistics.fmean([30.0, 50.0]) + START_SECONDS
    assert seconds_left(tuning, ended, "impala", 0.5) == pytest.approx((4 * 2 + 5 * 2 - 0.5) * one)
