"""The runner: order, cooldowns, failures, signals and output, with fake training programs."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlcb.cli.benchmark import main
from rlcb.errors import Interrupted
from rlcb.processes.machine_lock import Lock
from rlcb.processes.signals import StopSignal
from rlcb.study import console, runner
from rlcb.study.console import StudyProgress
from rlcb.study.folder import StudyFolder, open_study
from rlcb.study.runner import Runner
from rlcb.study.study import PlannedRun
from tests.study.test_study import evaluation, put, record_for

STUDY = {"algorithms": ["ppo"], "seeds": [1, 2], "duration": 0.5, "cooldown": 7.0}
NO_LOAD = {"cpu_percent": 1.0, "load_average": [0.1, 0.1, 0.1], "available_memory_gb": 1.0, "busiest": []}


class Scene:
    """A study with fake training and evaluation programs that write the files of the real ones."""

    def __init__(self, root: Path) -> None:
        self.folder: StudyFolder = open_study(root, STUDY)
        self.folder.write()
        self.stop = StopSignal(forwards=True)
        self.calls: list[str] = []
        self.rests: list[float] = []
        self.failing: set[str] = set()
        self.during: Callable[[str], None] = lambda name: None
        self.lock = Lock(root.parent / "lock", "")

    def run_logged(self, command: Sequence[str], log: Path, *_: Any) -> int:
        run = next(each for each in self.folder.study.runs if each.name == log.parent.name)
        program = command[3]  # after `python -m rlcb`
        self.calls.append(f"{program} {run.name}")
        log.write_text(f"{program}: failed: the world ended\n")
        self.during(run.name)
        status = (
            "interrupted" if self.stop.received else "failed" if run.name in self.failing else "completed"
        )
        if program == "evaluate":
            put(log.parent, None, evaluation())
        else:
            put(log.parent, record_for(run, status))
        return {"completed": 0, "failed": 1, "interrupted": 130}[status]

    def sleep(self, seconds: float, on_poll: Callable[[float], None]) -> None:
        on_poll(seconds)
        self.rests.append(seconds)
        self.calls.append("rest")

    def run(self, retry_failed: bool = False) -> list[console.Outcome]:
        progress = StudyProgress()
        return Runner(self.folder, self.stop, progress, self.lock, retry_failed).run_all(
            self.folder.study.runs
        )


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(tmp_path / "s")
    monkeypatch.setattr(runner, "run_logged", made.run_logged)
    monkeypatch.setattr(runner, "measure_load", lambda: NO_LOAD)
    monkeypatch.setattr(made.stop, "sleep", made.sleep)
    return made


def planned_run(scene: Scene, number: int) -> PlannedRun:
    return scene.folder.study.runs[number - 1]


def test_every_run_is_trained_then_evaluated_with_a_cooldown_between_runs(scene: Scene) -> None:
    outcomes = scene.run()
    assert [outcome.status for outcome in outcomes] == ["completed"] * 4
    expected: list[str] = []
    for run in scene.folder.study.runs:
        expected += [f"train {run.name}", f"evaluate {run.name}", "rest"]
    assert scene.calls == expected[:-1]
    assert scene.rests == [7.0] * 3


def test_finished_runs_are_not_repeated_and_cause_no_cooldown(scene: Scene) -> None:
    scene.run()
    (scene.folder.run_folder(planned_run(scene, 3)) / "evaluation" / "0.json").unlink()
    scene.calls.clear()
    scene.run()
    assert scene.calls == [f"evaluate {planned_run(scene, 3).name}"]


def test_a_failure_is_reported_and_only_retried_with_retry_failed(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    name = planned_run(scene, 2).name
    scene.failing = {name}
    outcomes = scene.run()
    assert [outcome.status for outcome in outcomes] == ["completed", "failed", "completed", "completed"]
    assert outcomes[1].reason == "the world ended"
    assert "FAILED: the world ended" in capsys.readouterr().out
    scene.calls.clear()
    assert scene.run()[1].reason == "the world ended (earlier)"
    assert scene.calls == []
    scene.failing = set()
    assert [outcome.status for outcome in scene.run(retry_failed=True)] == ["completed"] * 4
    assert scene.calls == [f"train {name}", f"evaluate {name}"]


def test_no_program_starts_after_a_signal(scene: Scene) -> None:
    scene.during = lambda name: scene.stop.received.append(signal.SIGTERM)
    with pytest.raises(Interrupted) as interruption:
        scene.run()
    assert interruption.value.exit_code == 143
    assert scene.calls == [f"train {planned_run(scene, 1).name}"]


def test_a_run_locked_by_another_process_is_not_started(scene: Scene) -> None:
    folder = scene.folder.run_folder(planned_run(scene, 1))
    folder.mkdir()
    other = Lock(folder / "study.lock", "")
    other.acquire(scene.folder.root)
    outcome = scene.run()[0]
    other.release()
    assert outcome.status == "failed"
    assert "another process runs" in outcome.reason
    assert not any(planned_run(scene, 1).name in call for call in scene.calls)


def test_the_log_records_the_load_at_each_start(scene: Scene) -> None:
    scene.run()
    lines = (scene.folder.root / "study_log.jsonl").read_text().splitlines()
    loads = [each["load"] for each in map(json.loads, lines) if each["event"] == "start"]
    assert loads == [NO_LOAD] * 4


def test_progress_lines_show_the_completed_share_and_the_time_left(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LINE_INTERVAL_SECONDS", 0.0)
    scene.run()
    lines = [line for line in capsys.readouterr().out.splitlines() if "of the study" in line]
    shares = [int(line.partition("%")[0]) for line in lines]
    assert shares == sorted(shares)
    assert shares[0] == 0 and 75 <= shares[-1] <= 100
    assert all(
        re.search(r"\d:\d\d:\d\d left · \d/4 ppo (sequential|parallel) coinrun [12] · \w+", line)
        for line in lines
    )


def test_the_plan_starts_with_the_number_of_runs_and_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "PLAN_ROWS", 2)
    flags = ["--algorithms", "ppo", "--seeds", "1", "2", "--duration", "1", "--evaluate-episodes", "0"]
    assert main([*flags, "--dry-run", "--output-dir", str(tmp_path / "s")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("STUDY of 4 runs: 4 to run, about 4:00:")
    assert "...  and 2 more" in lines[-2]
    assert list(tmp_path.iterdir()) == []
