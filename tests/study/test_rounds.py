"""Studies that add seeds in rounds: they stop when settled, put groups out, keep to their time and resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rlcb.cli.benchmark import main
from rlcb.comparison.sequential_test import least_rounds, threshold
from rlcb.errors import UsageError
from rlcb.processes.machine_lock import Lock
from rlcb.processes.signals import StopSignal
from rlcb.study import console, runner
from rlcb.study.console import Outcome, StudyProgress, hours_of_more_rounds, print_answer
from rlcb.study.folder import open_study
from rlcb.study.rounds import decisions, run_rounds
from rlcb.study.runner import Runner
from rlcb.study.state import TimeEstimate
from rlcb.study.study import PlannedRun, build_study
from tests.study.test_runner import NO_LOAD
from tests.study.test_study import evaluation, put, record_for

STUDY: dict[str, Any] = {
    "algorithms": ["ppo", "impala", "a2c"],
    "modes": ["parallel"],
    "envs": ["starpilot"],
    "seeds": [1],
    "duration": 0.1,
    "until_decided": True,
    "max_hours": 100.0,
}
MEANS = {"ppo": 4.0, "impala": 3.2, "a2c": 1.0}


class Rounds:
    """A study in rounds with fake programs; `value` gives the return of a run on unseen levels."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.trained = root, []  # type: Path, list[str]
        self.failing: set[str] = set()
        self.value: Callable[[PlannedRun], float] = self.usual
        self.lock = Lock(root.parent / "lock", "")
        monkeypatch.setattr(runner, "run_logged", self.run_logged)
        monkeypatch.setattr(runner, "measure_load", lambda: NO_LOAD)

    @staticmethod
    def usual(run: PlannedRun) -> float:
        random = np.random.default_rng([run.seed, *map(ord, run.algorithm)])
        return MEANS[run.algorithm] + float(random.normal(0, 0.3))

    def run_logged(self, command: Sequence[str], log: Path, *_: Any) -> int:
        study = open_study(self.root, {}).study
        run = next(each for each in study.runs if each.name == log.parent.name)
        log.write_text("train: failed: the world ended\n")
        if command[3] == "evaluate":
            splits = {"train": {"mean_reward": 9.0}, "test": {"mean_reward": self.value(run)}}
            put(log.parent, None, {**evaluation(), "splits": splits, "env": run.env, "trained_env": run.env})
            return 0
        self.trained.append(run.name)
        status = "failed" if run.name in self.failing else "completed"
        put(log.parent, record_for(run, status))
        return 1 if status == "failed" else 0

    def run(self, retry_failed: bool = False, **given: Any) -> list[Outcome]:
        folder = open_study(self.root, given if (self.root / "study.yaml").exists() else {**STUDY, **given})
        folder.write()
        stop, progress = StopSignal(forwards=True), StudyProgress()
        self.runner = Runner(folder, stop, progress, self.lock, retry_failed)
        return run_rounds(self.runner)

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.root / "study.yaml").read_text())
        return found

    def seeds_of(self, algorithm: str) -> list[int]:
        return [int(name.split("seed")[1]) for name in self.trained if name.startswith(f"{algorithm}_")]


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(tmp_path / "s", monkeypatch)


def test_rounds_end_when_one_group_is_left_and_bad_groups_get_no_more_seeds(
    rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {outcome.status for outcome in rounds.run()} == {"completed"}
    study = rounds.runner.folder.study
    (decision,) = decisions(study, rounds.runner.states).values()
    assert decision.winner == "PPO parallel"
    first, last = decision.excluded
    assert (first.label, last.label) == ("A2C parallel", "IMPALA parallel")
    assert least_rounds(threshold(3)) <= first.rounds < last.rounds
    assert rounds.seeds_of("ppo") == rounds.seeds_of("impala") == list(range(1, last.rounds + 1))
    assert rounds.seeds_of("a2c") == list(range(1, first.rounds + 1))
    assert rounds.settings()["last_seeds"] == {"a2c_parallel_starpilot": first.rounds}
    said = " ".join(capsys.readouterr().out.split())
    assert (
        f"starpilot: not settled by the sequential test after {first.rounds} rounds; PPO parallel and" in said
    )
    assert (
        f"starpilot: settled by the sequential test after {last.rounds} rounds: PPO parallel is best" in said
    )
    assert f"put out: A2C parallel by {first.by} in round {first.rounds}" in said


def test_the_progress_of_rounds_is_the_share_of_their_time(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LINE_INTERVAL_SECONDS", 0.0)
    rounds.value = lambda run: float(np.random.default_rng([run.seed, len(run.algorithm)]).normal())
    rounds.run(max_hours=2.0, algorithms=["ppo", "impala"])
    lines = [each for each in capsys.readouterr().out.splitlines() if "of the study" in each]
    shares = [int(each.partition("%")[0]) for each in lines]
    assert shares == sorted(shares) and shares[0] <= 2 and 85 <= shares[-1] <= 100
    assert "1:5" in lines[0]


def test_a_settled_study_runs_nothing_when_it_is_started_again(rounds: Rounds) -> None:
    rounds.run()
    before, study = list(rounds.trained), rounds.settings()
    rounds.run(seeds=[1])
    assert rounds.trained == before and rounds.settings() == study


def test_a_study_of_fixed_seeds_goes_on_in_rounds_and_tests_its_first_seeds_too(rounds: Rounds) -> None:
    folder = open_study(rounds.root, {**STUDY, "seeds": [1, 2, 3], "until_decided": None, "max_hours": None})
    folder.write()
    progress, stop = StudyProgress(), StopSignal(forwards=True)
    Runner(folder, stop, progress, rounds.lock, False).run_all(folder.study.runs)
    hours = hours_of_more_rounds(open_study(rounds.root, {}))
    before = list(rounds.trained)
    assert len(before) == 9 and hours is not None
    rounds.run(until_decided=True, max_hours=hours)
    assert rounds.trained[:9] == before and len({*rounds.trained}) == len(rounds.trained)
    (decision,) = decisions(rounds.runner.folder.study, rounds.runner.states).values()
    assert decision.winner == "PPO parallel" and decision.rounds > 3
    usual = {run.name: rounds.usual(run) for run in rounds.runner.folder.study.runs}
    values = {
        label: [usual[f"{name}_parallel_starpilot_seed{seed}"] for seed in range(1, decision.rounds + 1)]
        for label, name in (("PPO parallel", "ppo"), ("IMPALA parallel", "impala"))
    }
    assert decision.lead is not None
    assert decision.lead.difference == pytest.approx(
        np.mean(values["PPO parallel"]) - np.mean(values["IMPALA parallel"])
    )


def test_equal_groups_go_on_until_the_time_is_over_and_more_hours_add_rounds(rounds: Rounds) -> None:
    rounds.value = lambda run: float(np.random.default_rng([run.seed, len(run.algorithm)]).normal())
    rounds.run(max_hours=2.5, algorithms=["ppo", "impala"])
    estimate = rounds.runner.estimate
    run_hours = (estimate.total(rounds.runner.folder.study.runs[0]) or 0.0) / 3600
    assert rounds.seeds_of("ppo") == list(range(1, int(2.5 / (2 * run_hours)) + 1))
    rounds.run(max_hours=3.0)
    assert rounds.seeds_of("ppo") == list(range(1, int(3.0 / (2 * run_hours)) + 1))
    assert rounds.settings()["max_hours"] == 3.0


def test_an_interrupted_round_is_completed_before_the_next_look(rounds: Rounds) -> None:
    rounds.run(max_hours=1.0)
    folder = rounds.runner.folder
    missing = folder.study.runs[-1]
    (folder.run_folder(missing) / "evaluation" / "0.json").unlink()
    (decision,) = decisions(folder.study, folder.states()).values()
    assert decision.rounds == len(folder.study.seeds) - 1
    trained = list(rounds.trained)
    rounds.run()
    assert rounds.trained == trained
    assert folder.state(missing).done


def test_a_failed_run_adds_no_rounds_until_it_is_retried(rounds: Rounds) -> None:
    rounds.failing = {"a2c_parallel_starpilot_seed2"}
    outcomes = rounds.run()
    assert [each.run.name for each in outcomes if each.status == "failed"] == list(rounds.failing)
    assert rounds.settings()["seeds"] == [1, 2]
    rounds.failing = set()
    rounds.run(retry_failed=True)
    (decision,) = decisions(rounds.runner.folder.study, rounds.runner.states).values()
    assert decision.winner == "PPO parallel"


def test_every_game_has_its_own_groups_in_question(rounds: Rounds) -> None:
    def value(run: PlannedRun) -> float:
        swapped = {"ppo": "impala", "impala": "ppo"}.get(run.algorithm, run.algorithm)
        other = swapped if run.game == "coinrun" else run.algorithm
        noise = float(np.random.default_rng([run.seed, *map(ord, run.name)]).normal(0, 0.1))
        return MEANS[other] + noise

    rounds.value = value
    rounds.run(envs=["starpilot", "coinrun"])
    found = decisions(rounds.runner.folder.study, rounds.runner.states)
    assert {env: each.winner for env, each in found.items()} == {
        "procgen-starpilot-v0": "PPO parallel",
        "procgen-coinrun-v0": "IMPALA parallel",
    }
    assert all(each.threshold == threshold(3, games=2) for each in found.values())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_hours": None}, "--max-hours"),
        ({"until_decided": None}, "only a study with until_decided"),
        ({"order": "by-config"}, "by-config"),
        ({"evaluate_episodes": 0}, "evaluate_episodes"),
        ({"algorithms": ["ppo"]}, "two algorithms or both modes"),
    ],
)
def test_a_study_that_cannot_be_decided_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        build_study({**STUDY, **changes}, "study")


@pytest.mark.parametrize(("best", "order"), [(False, "by-seed"), (True, "by-seed"), (False, "by-config")])
def test_a_study_ends_with_its_answer_the_way_to_settle_it_and_the_picture(
    rounds: Rounds, capsys: pytest.CaptureFixture[str], best: bool, order: str
) -> None:
    given = {**STUDY, "seeds": [1, 2, 3], "until_decided": None, "max_hours": None, "order": order}
    folder = open_study(rounds.root, given)
    folder.write()
    content = {"answer": "No algorithm is shown to be best.", "answers": [{"best": best}]}
    (rounds.root / "comparison.json").write_text(json.dumps(content))
    print_answer(folder)
    blank, answer, *hint, picture = capsys.readouterr().out.splitlines()
    assert (blank, answer) == ("", content["answer"])
    assert picture == f"Picture: {rounds.root / 'comparison.png'}"
    assert bool(hint) == (not best and order == "by-seed")
    if hint:
        estimate = TimeEstimate(folder.study, folder.states())
        ten_rounds = sum(estimate.total(run) or 0.0 for run in folder.study.runs[:3]) * 10 / 3600
        hours = float(hint[-1].split()[-1])
        assert "--until-decided" in hint[-1] and ten_rounds <= hours < ten_rounds + 0.1 + 1e-9


FLAGS = ["--algorithms", "ppo", "a2c", "--modes", "parallel", "--duration", "0.1", "--until-decided"]


def test_too_few_hours_for_the_test_are_refused_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*FLAGS, "--output-dir", str(tmp_path / "s"), "--dry-run"]
    assert main([*flags, "--max-hours", "0.5"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"time for 2 rounds of 2 runs, but the test needs {least_rounds(threshold(2))} at least" in error
    assert main([*flags, "--max-hours", "2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "for at most 2:00:00; 9 rounds of all groups fit" in out
    assert main([*flags, "--max-hours", "2", "--launcher", "slurm"]) == 2
    assert not (tmp_path / "s").exists()


def test_hours_plans_a_new_study_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "s"
    flags = ["--output-dir", str(root), "--hours", "1"]
    assert main([*flags, "--dry-run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "about 1:00:00 in all" in out
    assert "can detect with 5 seeds" in out and "starpilot: about " in out
    root.mkdir()
    (root / "study.yaml").write_text(json.dumps({"algorithms": ["ppo"]}))
    assert main(flags) == 2
    assert "leave out --hours to resume it" in capsys.readouterr().err
