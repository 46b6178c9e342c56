"""A game in two distribution modes is two tasks, whose returns are never compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlcb.cli.compare import main
from rlcb.comparison.findings import headline
from tests.comparison_run_folders import RunSet

EASY, HARD = ({"env.distribution_mode": mode} for mode in ("easy", "hard"))
STARPILOT = "procgen-starpilot-v0"


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    """In coinrun both algorithms in both modes; starpilot in easy mode alone."""
    runs = RunSet(tmp_path / "runs")
    for algorithm, more in (("ppo", 0.0), ("impala", 1.0)):
        for settings, returns in ((EASY, [6.0, 6.5]), (HARD, [3.0, 3.5])):
            ends = {"sequential": [each + more for each in returns]}
            runs.add_ends(ends, algorithm=algorithm, settings=settings)
        runs.add_ends({"sequential": [20.0 + more, 21.0 + more]}, algorithm=algorithm, env=STARPILOT)
    return runs


def test_each_distribution_mode_has_its_own_results_and_findings(study: RunSet) -> None:
    comparison = study.compare()
    labels = {game.game: [result.group.label for result in game.groups] for game in comparison.games}
    assert labels == {
        "coinrun easy": ["PPO sequential, easy", "IMPALA sequential, easy"],
        "coinrun hard": ["PPO sequential, hard", "IMPALA sequential, hard"],
        "starpilot": ["PPO sequential, easy", "IMPALA sequential, easy"],
    }
    assert len({game.env for game in comparison.games}) == 3
    for game in comparison.games:
        assert all({pair.first, pair.second} == set(labels[game.game]) for pair in game.pairs)
    easy = [line for line in headline(comparison) if line.startswith(("coinrun easy", "starpilot"))]
    assert len(easy) == 6 and not any("hard" in line for line in easy)


def test_scores_use_the_mode_with_the_most_games(study: RunSet) -> None:
    across = study.compare().across
    assert across is not None and across.games == ["coinrun easy", "starpilot"]
    scores = across.scores["final_reward"]
    assert set(scores) == {"PPO sequential, easy", "IMPALA sequential, easy"}
    # Means of 6.25 from 5 to 10, and of 20.5 from 2.5 to 64.
    assert scores["PPO sequential, easy"].mean.mean == pytest.approx((1.25 / 5 + 18 / 61.5) / 2)


def test_every_output_is_written(study: RunSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--output", str(tmp_path / "c.png"), "--reference", "--template", "--bootstrap-samples", "100"]
    assert main(["--runs", str(study.root), *flags, "--threshold", "coinrun=6"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "WINNERS: coinrun easy" in printed and "WINNERS: coinrun hard" in printed
    names = {path.name for path in tmp_path.glob("c_*.png")}
    assert names == {"c_coinrun-easy.png", "c_coinrun-hard.png", "c_starpilot.png"}
    games: dict[str, Any] = json.loads((tmp_path / "c.json").read_text())["games"]
    curves = {game["game"]: game["curves"][0]["groups"] for game in games.values()}
    assert {group["label"] for group in curves["coinrun hard"]} == {
        *("PPO sequential, hard", "IMPALA sequential, hard")
    }
    # The runs stay at one return, so their curves do.
    assert {value for value in curves["coinrun hard"][0]["mean"] if value is not None} == {3.25}
    assert {value for value in curves["coinrun easy"][0]["mean"] if value is not None} == {6.25}
