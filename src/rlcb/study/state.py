"""How the runs of a study stand, read from what they left in their folders."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rlcb.errors import UsageError
from rlcb.study.study import PlannedRun, Study
from rlcb.training.run_folder import CONFIG_FILE

RECORD = "benchmark_metrics.json"
TRAINING_LOG, EVALUATION_LOG = "training.log", "evaluation.log"
TAIL_BYTES = 16 * 1024  # holds some rows of metrics.jsonl and the end of a traceback


@dataclass(frozen=True)
class State:
    """How a run stands."""

    status: str
    """to do, unfinished (it was ended before it could say how), interrupted, failed or completed."""
    record: dict[str, Any]
    """Its benchmark_metrics.json, empty without one."""
    evaluation: dict[str, Any] | None
    """The evaluation of its final checkpoint that the study asks for."""
    elapsed_seconds: float
    """Seconds that it has trained."""
    wants_evaluation: bool

    @property
    def done(self) -> bool:
        return self.status == "completed" and not self.wants_evaluation

    @property
    def begun(self) -> bool:
        """Whether there is something to resume."""
        return self.status not in ("to do", "completed")

    @property
    def text(self) -> str:
        if self.status == "completed":
            return "not evaluated" if self.wants_evaluation else "completed"
        return self.status


def state_of(study: Study, cell: PlannedRun, folder: Path) -> State:
    """How a run stands. Raises UsageError if its folder holds another run."""
    record = read_json(folder / RECORD)
    if not record:
        begun = (folder / CONFIG_FILE).exists()
        row = last_row(folder) if begun else {}
        elapsed = float(row.get("time/elapsed_seconds") or 0.0)
        return State("unfinished" if begun else "to do", {}, None, elapsed, study.evaluate_episodes > 0)
    found = tuple(record.get(key) for key in ("algorithm", "training_mode", "env", "seed"))
    if found != (cell.algorithm, cell.mode, cell.env, cell.seed):
        raise UsageError(
            f"{folder} holds another run ({' '.join(map(str, found))}) than {cell.title}; "
            "move it away, or give another --output-dir"
        )
    status = str(record.get("status"))
    evaluation = None
    if status == "completed" and study.evaluate_episodes:
        evaluation = find_evaluation(folder, study.evaluate_episodes, record.get("total_timesteps"))
    elapsed = float(record.get("duration_hours") or 0.0) * 3600
    return State(status, record, evaluation, elapsed, study.evaluate_episodes > 0 and evaluation is None)


def find_evaluation(folder: Path, episodes: int, timesteps: int | None) -> dict[str, Any] | None:
    """The newest evaluation of the trained policy with so many episodes, None if there is none."""
    for path in sorted((folder / "evaluation").glob("*.json"), key=_modified, reverse=True):
        result = read_json(path)
        if (
            result.get("algorithm") not in (None, "random")
            and result.get("episodes_per_split") == episodes
            and result.get("timesteps") == timesteps
            and result.get("deterministic") is False
            and result.get("env") == result.get("trained_env")
        ):
            return result
    return None


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if the file is missing or damaged."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def last_row(folder: Path) -> dict[str, Any]:
    """The newest whole row of a run's metrics.jsonl, empty without one."""
    for path in folder.glob("logs/*/metrics.jsonl"):
        for line in reversed(tail(path)):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # half of it is written
            if isinstance(row, dict):
                return row
    return {}


def tail(path: Path) -> list[str]:
    """The last lines of a text file, none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []


def reason_in(log: Path) -> str:
    """What a program said last before it failed."""
    lines = [line.strip() for line in tail(log) if line.strip() and not line.startswith("=== ")]
    said = [line for line in lines if ": error: " in line or ": failed: " in line]
    if said and said[-1] in lines[-3:]:
        return said[-1].partition(": error: ")[2] or said[-1].partition(": failed: ")[2]
    return lines[-1] if lines else "it said nothing"


START_SECONDS = 8.0  # to load libraries, make environments and save, beside the training itself
EVALUATION_START_SECONDS = 5.0
EPISODE_SECONDS = 0.3  # a guess, for an episode of Procgen, until the first evaluation was timed


class Estimate:
    """Seconds of the parts of a study. None is what nobody can know yet: how long a number of timesteps takes
    before anything has run."""

    def __init__(self, study: Study, states: Mapping[str, State]) -> None:
        self.study = study
        self.speeds: list[tuple[PlannedRun, float]] = []
        """Finished runs and their FPS."""
        self.evaluations: list[tuple[PlannedRun, float]] = []
        """Evaluated runs and the seconds that it took."""
        for cell in study.cells:
            self.learn(cell, states[cell.name])

    def learn(self, cell: PlannedRun, state: State) -> None:
        """Take in what a run took."""
        fps = state.record.get("average_fps")
        if state.status == "completed" and fps:
            self.speeds.append((cell, float(fps)))
        if state.evaluation is not None:
            self.evaluations.append((cell, float(state.evaluation.get("duration_seconds") or 0.0)))

    def training(self, cell: PlannedRun, fps: float | None = None) -> float | None:
        """Seconds of a whole training; `fps` is that of a run which goes on, for want of finished ones."""
        if self.study.duration is not None:
            return self.study.duration * 3600
        for same in (("algorithm", "mode", "env"), ("algorithm", "mode"), ()):
            speeds = [
                speed
                for other, speed in self.speeds
                if all(getattr(other, key) == getattr(cell, key) for key in same)
            ]
            if speeds:
                return (self.study.total_timesteps or 0) / fmean(speeds)
        return None if not fps else (self.study.total_timesteps or 0) / fps

    def evaluation(self, cell: PlannedRun) -> float:
        """Seconds of an evaluation."""
        if not self.study.evaluate_episodes:
            return 0.0
        seconds = [taken for other, taken in self.evaluations if other.env == cell.env]
        seconds = seconds or [taken for _, taken in self.evaluations]
        guess = 2 * self.study.evaluate_episodes * EPISODE_SECONDS
        return EVALUATION_START_SECONDS + (fmean(seconds) if seconds else guess)

    def whole(self, cell: PlannedRun, fps: float | None = None) -> float | None:
        """Seconds of a run from its start to its evaluation."""
        training = self.training(cell, fps)
        return None if training is None else training + START_SECONDS + self.evaluation(cell)

    def left(self, cell: PlannedRun, state: State, fps: float | None = None) -> float | None:
        """Seconds until a run is done, from how it stands."""
        if state.done:
            return 0.0
        if state.status == "completed":
            return self.evaluation(cell)
        training = self.training(cell, fps)
        if training is None:
            return None
        return max(0.0, training - state.elapsed_seconds) + START_SECONDS + self.evaluation(cell)

    def total_left(self, cells: list[PlannedRun], states: Mapping[str, State]) -> float | None:
        """Seconds until all of them are done, with the rests between them."""
        seconds = [self.left(cell, states[cell.name]) for cell in cells]
        known = [each for each in seconds if each is not None]
        if len(known) < len(seconds):
            return None
        return sum(known) + self.study.cooldown * max(0, sum(each > 0 for each in known) - 1)
