"""The nearest name for a misspelled one: in the function, and in the message of every kind of wrong name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcb.cli import benchmark, compare, evaluate, profile, train, tune
from rlcb.cli.main import main as rlcb
from rlcb.config.games import GAMES
from rlcb.suggestion import did_you_mean, nearest


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("coinrunn", "coinrun"),
        ("star-pilot", "starpilot"),
        ("COINRUN", "coinrun"),
        ("CartPole-v1", None),
        ("", None),
    ],
)
def test_the_nearest_game(word: str, name: str | None) -> None:
    assert nearest(word, GAMES) == name


def test_a_name_that_resembles_none_gets_no_suggestion() -> None:
    assert did_you_mean("xyz", GAMES) == ""
    assert did_you_mean(5, [1, 2]) == ""
    assert did_you_mean("mazes", GAMES) == "; did you mean maze?"


STUDY = ("--algorithms", "ppo", "--dry-run")
WRONG = {
    "flag": (train.main, ["--duraton", "1h"], "--duration"),
    "flag with its value": (train.main, ["--lerning-rate=0.1"], "--learning-rate"),
    "flag of a study": (benchmark.main, ["--algorithm", "ppo"], "--algorithms"),
    "flag of a tuning": (tune.main, ["--trails", "5"], "--trials"),
    "flag of the evaluation": (evaluate.main, ["--num-episode", "5"], "--num-episodes"),
    "flag of the comparison": (compare.main, ["--base-line", "PPO"], "--baseline"),
    "flag of the profile": (profile.main, ["--quik"], "--quick"),
    "algorithm": (train.main, ["--algorithm", "impla"], "impala"),
    "mode": (train.main, ["--mode", "paralel"], "parallel"),
    "algorithm of a study": (benchmark.main, ["--algorithms", "ppo2", "--dry-run"], "ppo"),
    "traced configuration": (profile.main, ["--trace", "ppo_seqential"], "ppo_sequential"),
    "split": (evaluate.main, ["--split", "tset"], "test"),
    "command": (rlcb, ["bechmark"], "benchmark"),
    "setting": (train.main, ["--set", "training.gama=0.9"], "training.gamma"),
    "setting in another section": (train.main, ["--set", "env.n_steps=8"], "training.n_steps"),
    "setting without a section": (train.main, ["--set", "gamma=0.9"], "training.gamma"),
    "section": (train.main, ["--set", "trainig.gamma=0.9"], "training"),
    "nested setting": (train.main, ["--set", "env.procgen.centre_agent=true"], "env.procgen.center_agent"),
    "value of a setting": (train.main, ["--set", "training.optimizer=adan"], "adam"),
    "setting of a study": (benchmark.main, [*STUDY, "--set", "training.gama=0.9"], "training.gamma"),
    "scope of a setting": (benchmark.main, [*STUDY, "--set", "pp0:training.gamma=0.9"], "ppo"),
    "game": (train.main, ["--env", "coinrum"], "coinrun"),
    "game of a study": (benchmark.main, [*STUDY, "--envs", "starpilt"], "starpilot"),
    "environment": (benchmark.main, [*STUDY, "--envs", "CartPol-v1"], "CartPole"),
}


@pytest.mark.parametrize(("main", "words", "name"), WRONG.values(), ids=WRONG)
def test_a_wrong_name_is_one_line_that_names_the_nearest(
    main: object, words: list[str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(main)
    if main is train.main or main is benchmark.main or main is tune.main:
        words = [*words, "--output-dir", str(tmp_path / "run")]
    assert main(argv=words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"did you mean {name}?" in line.replace("Did you mean: `", "did you mean ").replace("`?", "?")
    assert not (tmp_path / "run").exists()


def test_wrong_keys_of_files_are_named_with_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, overlay = tmp_path / "study.yaml", tmp_path / "overlay.yaml"
    study.write_text("algorithms: [ppo]\nseed: [1]\n")
    overlay.write_text("when: {ppo_paralel: {training: {gamma: 0.9}}}\n")
    assert benchmark.main(["--study", str(study), "--dry-run"]) == 2
    assert train.main(argv=["--config", str(overlay)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "did you mean seeds?" in first
    assert "did you mean ppo_parallel?" in second
