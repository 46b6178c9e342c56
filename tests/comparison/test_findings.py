"""Findings name the groups without a value."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcb.comparison.findings import effort, findings, headline, rank_in_game
from tests.comparison_run_folders import RunSet, evaluation, line, row


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path)


def without_returns(study: RunSet, **changes: object) -> None:
    study.add([row(100 * i, 10.0 * i, None) for i in range(1, 11)], "impala", mode="parallel", **changes)


def test_claim_names_the_number_of_groups_with_a_value(study: RunSet) -> None:
    study.add_ends({"sequential": [5.0, 5.1, 5.2], "parallel": [9.0, 9.1, 9.2]})
    without_returns(study)
    comparison = study.compare()
    ranking = rank_in_game(comparison.games[0], "return_at_timesteps")
    assert ranking is not None and ranking.won and ranking.missing == ("IMPALA parallel",)
    for found in findings(comparison)[:2]:
        assert found.claim == "PPO parallel is best of the 2 groups with a value"
        assert found.detail.endswith("; no value for IMPALA parallel.")


def test_winner_over_all_groups_needs_no_number(study: RunSet) -> None:
    study.add_ends({"sequential": [5.0, 5.1, 5.2], "parallel": [9.0, 9.1, 9.2]})
    found = findings(study.compare())[0]
    assert found.claim == "PPO parallel is best" and "no value" not in found.detail


def test_without_a_winner_groups_without_a_value_are_named(study: RunSet) -> None:
    study.add_ends({"sequential": [5.0, 7.0], "parallel": [5.5, 7.0]})
    without_returns(study)
    for found in findings(study.compare())[:2]:
        assert found.claim == "no clear winner; PPO parallel is ahead"
        assert found.detail.endswith("; no value for IMPALA parallel.")
        assert found.caution == ""  # its seed is there, but has no return


def test_equal_means_and_a_group_without_a_value(study: RunSet) -> None:
    study.add_ends({"sequential": [5.0, 7.0], "parallel": [6.0, 6.0]})
    without_returns(study)
    found = findings(study.compare())[0]
    assert found.detail.endswith("have the same mean return; no value for IMPALA parallel.")


def test_only_one_group_has_a_value(study: RunSet) -> None:
    study.add(line(5, 6, 1000, 100))
    without_returns(study)
    found = findings(study.compare())[0]
    assert found.claim == "only PPO sequential has a value"
    assert found.detail == "Mean return 6.00, n=1; no value for IMPALA parallel."


def test_missing_seeds_of_a_group_are_counted(study: RunSet) -> None:
    study.add_ends({"sequential": [5.0, 5.1], "parallel": [9.0, 9.1, 9.2]})
    study.add(line(5, 5, 200, 20), seed=2, status="interrupted")
    text = headline(study.compare())[0]
    assert "PPO parallel is best." in text and "n=3; higher than PPO sequential" in text
    assert "n=2 of 3)" in text and "n=3 of" not in text


def test_speed_of_a_group_without_a_value(study: RunSet) -> None:
    for seed in (0, 1):
        study.add(line(5, 6, 1000, 100), seed=seed)
        study.add(line(5, 6, 1000 + seed, 50), mode="parallel", seed=seed)
    without_returns(study, record={"average_fps": None})
    speed = findings(study.compare())[-1]
    assert "PPO parallel" in speed.claim and speed.detail.endswith("; no value for IMPALA parallel.")


def test_speed_of_the_baseline_alone(study: RunSet) -> None:
    study.add(line(5, 6, 1000, 100))
    without_returns(study, record={"average_fps": None})
    speed = findings(study.compare())[-1]
    assert speed.claim == "no group is faster than PPO sequential"
    assert speed.detail == "No value for IMPALA parallel."


def test_over_games(study: RunSet) -> None:
    for env in ("procgen-coinrun-v0", "procgen-maze-v0"):
        study.add_ends({"sequential": [6.0, 6.1], "parallel": [8.0, 8.1]}, env=env)
        without_returns(study, env=env)
    for found in findings(study.compare())[:2]:
        assert found.place.startswith("Over 2 games") and "PPO parallel" in found.claim
        assert "n=4" in found.detail and "n=4 of" not in found.detail
        # 8.0 and 8.1 are 0.60 and 0.62 of the range from 5 to 10 of both games
        assert found.detail.startswith("Mean normalised score 0.610 [")
        assert found.detail.endswith("; no value for IMPALA parallel.")


def test_a_budget_that_was_not_recorded_is_no_equal_budget(study: RunSet) -> None:
    for mode in ("sequential", "parallel"):
        evaluation(study.add(line(5, 6, 1000, 100), mode=mode, record={"duration_hours": None}), 5, 5)
    found = findings(study.compare())[0]
    assert found.place == "coinrun, unseen levels after an unrecorded time"
    assert effort(study.compare().games[0]) == ("an unrecorded time", False)
