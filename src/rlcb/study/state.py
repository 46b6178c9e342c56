"""The states of a study's runs, read from their folders, and estimates of the remaining time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rlcb.errors import UsageError
from rlcb.files import read_json
from rlcb.processes.subprocesses import tail
from rlcb.study.study import PlannedRun, Study
from rlcb.training.run_folder import CONFIG_FILE

RECORD = "benchmark_metrics.json"
TRAINING_LOG, EVALUATION_LOG = "training.log", "evaluation.log"


@dataclass(frozen=True)
class RunState:
    """The state of one run: what its folder says about training and evaluation."""

    status: str
    """to do, unfinished (started, but no final record was written), interrupted, failed or completed."""
    record: dict[str, Any]
    """The contents of benchmark_metrics.json; empty if the file is missing."""
    evaluation: dict[str, Any] | None
    """The evaluation of the final checkpoint with the study's number of episodes; None if there is none."""
    elapsed_seconds: float
    """Training time so far, in seconds."""
    needs_evaluation: bool
    """Whether the study evaluates its runs and this run has no evaluation yet."""

    @property
    def done(self) -> bool:
        """Whether the run is trained and, if the study evaluates, evaluated."""
        return self.status == "completed" and not self.needs_evaluation

    @property
    def resumable(self) -> bool:
        """Whether training has started and has not completed."""
        return self.status not in ("to do", "completed")

    @property
    def text(self) -> str:
        if self.status == "completed":
            return "not evaluated" if self.needs_evaluation else "completed"
        return self.status


def read_state(study: Study, run: PlannedRun, folder: Path) -> RunState:
    """Read the state of a run from its folder. Raises UsageError if the folder holds a different run."""
    record = read_json(folder / RECORD)
    if not record:
        started = (folder / CONFIG_FILE).exists()
        row = last_row(folder) if started else {}
        elapsed = float(row.get("time/elapsed_seconds") or 0.0)
        return RunState("unfinished" if started else "to do", {}, None, elapsed, study.evaluate_episodes > 0)
    found = tuple(record.get(key) for key in ("algorithm", "training_mode", "env", "seed"))
    if found != (run.algorithm, run.mode, run.env, run.seed):
        raise UsageError(
            f"{folder} holds another run ({' '.join(map(str, found))}), expected {run.title}; "
            "move it away, or give another --output-dir"
        )
    status = str(record.get("status"))
    evaluation = None
    if status == "completed" and study.evaluate_episodes:
        evaluation = find_evaluation(folder, study.evaluate_episodes, record.get("total_timesteps"))
    elapsed = float(record.get("duration_hours") or 0.0) * 3600
    return RunState(status, record, evaluation, elapsed, study.evaluate_episodes > 0 and evaluation is None)


def find_evaluation(folder: Path, episodes: int, timesteps: int | None) -> dict[str, Any] | None:
    """Return the newest evaluation in a run's folder that the study can use; None if there is none.

    It must evaluate the checkpoint at `timesteps` with `episodes` sampled-action episodes on each split of
    the environment that the run was trained on.
    """
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


def last_row(folder: Path) -> dict[str, Any]:
    """Return the newest complete row of a run's metrics.jsonl; empty if there is none."""
    rows = (newest_row(path) for path in folder.glob("logs/*/metrics.jsonl"))
    return next((row for row in rows if row), {})


def newest_row(path: Path) -> dict[str, Any]:
    """Return the newest complete row of a metrics.jsonl; empty if there is none."""
    for line in reversed(tail(path)):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the row is only partly written
        if isinstance(row, dict):
            return row
    return {}


START_SECONDS = 8.0  # time to load libraries, make environments and save, in addition to training
EVALUATION_START_SECONDS = 5.0
EPISODE_SECONDS = 0.01  # assumed until the first evaluation has been timed; starpilot took 0.006


class TimeEstimate:
    """Estimates in seconds how long the parts of a study take, from the runs that have finished.

    Methods return None while the time is unknown: a budget in timesteps has no known speed before a run has
    made progress.
    """

    def __init__(self, study: Study, states: Mapping[str, RunState]) -> None:
        self.study = study
        self.speeds: list[tuple[PlannedRun, float]] = []
        """(run, FPS) of the runs whose training completed."""
        self.evaluations: list[tuple[PlannedRun, float]] = []
        """(run, seconds) of the evaluated runs."""
        for run in study.runs:
            self.add(run, states[run.name])

    def add(self, run: PlannedRun, state: RunState) -> None:
        """Use the measured times of a run for later estimates."""
        fps = state.record.get("average_fps")
        if state.status == "completed" and fps:
            self.speeds.append((run, float(fps)))
        if state.evaluation is not None:
            self.evaluations.append((run, float(state.evaluation.get("duration_seconds") or 0.0)))

    def training(self, run: PlannedRun, fps: float | None = None) -> float | None:
        """Return the seconds of a whole training.

        The speed comes from finished runs that are as similar as possible; without finished runs from `fps`,
        the current speed of the run in progress.
        """
        if self.study.duration is not None:
            return self.study.duration * 3600
        for same in (("algorithm", "where", "env"), ("algorithm", "where"), ("algorithm", "mode"), ()):
            speeds = [
                speed
                for other, speed in self.speeds
                if all(getattr(other, key) == getattr(run, key) for key in same)
            ]
            if speeds:
                return (self.study.total_timesteps or 0) / fmean(speeds)
        return None if not fps else (self.study.total_timesteps or 0) / fps

    def evaluation(self, run: PlannedRun) -> float:
        """Return the seconds of an evaluation; 0 if the study does not evaluate."""
        if not self.study.evaluate_episodes:
            return 0.0
        seconds = [measured for other, measured in self.evaluations if other.env == run.env]
        seconds = seconds or [measured for _, measured in self.evaluations]
        guess = 2 * self.study.evaluate_episodes * EPISODE_SECONDS
        return EVALUATION_START_SECONDS + (fmean(seconds) if seconds else guess)

    def total(self, run: PlannedRun, fps: float | None = None) -> float | None:
        """Return the seconds of a whole run: start, training and evaluation."""
        training = self.training(run, fps)
        return None if training is None else training + START_SECONDS + self.evaluation(run)

    def spent(self, run: PlannedRun, state: RunState) -> float:
        """Return the seconds that a run has taken so far, as estimated by `total` and `remaining`."""
        total, remaining = self.total(run), self.remaining(run, state)
        return 0.0 if total is None or remaining is None else max(0.0, total - remaining)

    def remaining(self, run: PlannedRun, state: RunState, fps: float | None = None) -> float | None:
        """Return the seconds until a run in this state is done."""
        if state.done:
            return 0.0
        if state.status == "completed":
            return self.evaluation(run)
        training = self.training(run, fps)
        if training is None:
            return None
        return max(0.0, training - state.elapsed_seconds) + START_SECONDS + self.evaluation(run)

    def total_remaining(self, runs: list[PlannedRun], states: Mapping[str, RunState]) -> float | None:
        """Return the seconds until all of these runs are done, cooldowns included."""
        seconds = [self.remaining(run, states[run.name]) for run in runs]
        known = [each for each in seconds if each is not None]
        if len(known) < len(seconds):
            return None
        return sum(known) + self.study.cooldown * max(0, sum(each > 0 for each in known) - 1)

    def possible_rounds(self) -> int | None:
        """Return how many rounds of all groups fit into the study's `max_hours`; None while the time of a run
        is unknown."""
        seconds = self.round_seconds()
        return None if seconds is None else int((self.study.max_hours or 0.0) * 3600 // seconds)

    def round_seconds(self) -> float | None:
        """Return the seconds of one run of every group; None while the time of a run is unknown."""
        seconds = [self.total(run) for run in self.study.runs if run.seed == self.study.seeds[0]]
        known = [each for each in seconds if each is not None]
        return None if len(known) < len(seconds) else sum(known)
