"""Comparisons of studies that added seeds in rounds: a sequential test gives the finding on unseen levels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rlcb.cli.compare import main
from rlcb.comparison.rounds import claim, lead, line, put_out, sentence
from rlcb.comparison.sequential_test import Decision, Exclusion, Lead, decide, difference_interval
from tests.comparison_run_folders import evaluation, write_run
from tests.comparison_run_folders import line as straight

STUDY: dict[str, Any] = {
    "algorithms": ["ppo", "a2c"],
    "modes": ["parallel"],
    "envs": ["coinrun"],
    "duration": 0.1,
    "until_decided": True,
    "max_hours": 9.0,
}


def compared(
    root: Path, returns: dict[str, list[float]], capsys: pytest.CaptureFixture[str]
) -> tuple[str, Any]:
    """Write a study with these returns on unseen levels, compare it; return the text and the JSON."""
    seeds = list(range(1, len(returns["ppo"]) + 1))
    same = {"trained_env": "procgen-coinrun-v0"}
    for algorithm, values in returns.items():
        for seed, value in zip(seeds, values):
            rows = straight(3, 5, 9000, 360)
            name = f"{algorithm}_parallel_coinrun_seed{seed}"
            evaluation(write_run(root / name, rows, algorithm, "parallel", seed=seed), 6, value, **same)
    (root / "study.yaml").write_text(yaml.safe_dump({**STUDY, "seeds": seeds}))
    assert main(["--runs", str(root), "--output", str(root / "comparison.png")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    return text, json.loads((root / "comparison.json").read_text())


def test_a_settled_study_says_so_with_its_rounds_and_the_sequential_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(2)
    returns = {"ppo": list(random.normal(7, 0.5, 9)), "a2c": list(random.normal(5, 0.5, 9))}
    decision = decide({"PPO": returns["ppo"], "A2C": returns["a2c"]})
    assert decision.winner == "PPO"
    (lost,) = decision.excluded
    interval = difference_interval(np.subtract(returns["ppo"], returns["a2c"]), 20.0)
    assert interval is not None
    text, data = compared(tmp_path / "s", returns, capsys)
    said = "Settled by the sequential test after 9 rounds: PPO parallel is best on unseen levels of coinrun."
    assert said in text
    difference = np.mean(returns["ppo"]) - np.mean(returns["a2c"])
    bounds = f"sequential interval {interval[0]:.2f} to {interval[1]:.2f}"
    assert (
        f"PPO parallel returned {np.mean(returns['ppo']):.2f} and is {difference:.2f} ahead of A2C parallel"
        in text
    )
    assert bounds in text and "choose it for runs of 6.0 minutes" in text
    assert f"put out: A2C parallel by PPO parallel in round {lost.rounds}" in text
    assert "the p-values of other findings do not allow for that" in text
    (answer,) = data["answers"]
    assert answer["best"] and answer["leader"] == "PPO parallel"
    assert answer["ci95"] == pytest.approx(interval) and answer["p_holm"] is None


def test_an_unsettled_study_names_no_winner_even_where_a_single_test_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, data = compared(tmp_path / "s", {"ppo": [7.0, 7.1, 7.2], "a2c": [5.0, 5.1, 5.3]}, capsys)
    assert (
        "Not settled by the sequential test after 3 rounds; PPO parallel and A2C parallel are in question"
        in text
    )
    assert "is best" not in text.split("training at")[0]
    assert "too few rounds for an interval" in text and "--max-hours" in text
    assert not data["answers"][0]["best"]


def test_other_studies_and_single_runs_have_no_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    returns = {"ppo": [7.0, 7.1, 7.2], "a2c": [5.0, 5.1, 5.3]}
    compared(tmp_path / "s", returns, capsys)
    runs = [str(path) for path in sorted((tmp_path / "s").glob("ppo*"))]
    assert main(["--runs", *runs, "--output", str(tmp_path / "c.png")]) == 0
    (tmp_path / "s" / "study.yaml").write_text(
        yaml.safe_dump({**STUDY, "seeds": [1, 2, 3], "until_decided": None, "max_hours": None})
    )
    assert main(["--runs", str(tmp_path / "s"), "--output", str(tmp_path / "c.png")]) == 0
    assert "sequential test" not in capsys.readouterr().out


def test_the_words_follow_the_decision() -> None:
    out = (Exclusion("C", "B", 5, 61.0),)
    settled = Decision(8, 40.0, ("A",), (*out, Exclusion("B", "A", 8, 44.0)), Lead("A", "B", 0.5, (0.1, 0.9)))
    assert claim(settled) == "settled by the sequential test after 8 rounds: A is best"
    assert lead(settled) == "A is 0.50 ahead of B, sequential interval 0.10 to 0.90"
    assert put_out(settled) == "put out: C by B in round 5 and B by A in round 8"
    open_still = Decision(6, 40.0, ("A", "B"), out, Lead("A", "B", 0.5, None))
    assert claim(open_still).endswith("after 6 rounds; A and B are in question")
    assert "A is 0.50 ahead of B, too few" in line(open_still)
    none = Decision(0, 40.0, ("A", "B"), (), None)
    assert line(none) == "not settled by the sequential test after 0 rounds; A and B are in question"
    assert sentence(none, {}, "here", "", "").startswith("Not settled")
