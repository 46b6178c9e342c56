"""Run a tuning: trial after trial, each algorithm in turn, every run with the training command."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcb.config.config import Config
from rlcb.config.yaml_file import dump_config
from rlcb.errors import Interrupted, RunError, UsageError
from rlcb.files import read_json, write_atomically
from rlcb.paths import rlcb_command
from rlcb.processes.machine_lock import Lock
from rlcb.processes.signals import StopSignal
from rlcb.processes.subprocesses import describe_exit, failure_reason, run_logged
from rlcb.training.run_folder import CONFIG_FILE
from rlcb.tuning.console import TuningProgress, trial_line
from rlcb.tuning.folder import TuningFolder, run_name
from rlcb.tuning.score import BUDGET_PARTS, RowReader, joint_score, normalised, position, window_of_part
from rlcb.tuning.search import Search, Trial, TrialResult, open_storage

READ_SECONDS = 1.0  # how often the rows of a run are read
RECORD = "benchmark_metrics.json"
LOG = "training.log"


class TrialFailed(Exception):
    """A run of a trial could not be trained. The message is the reason."""


class TrialPruned(Exception):
    """The pruner ended the trial."""


@dataclass
class CurrentRun:
    """The run that trains now, and the scores of its trial's earlier runs."""

    trial: Trial
    config: Config
    folder: Path
    index: int
    """Position among the runs of the trial, from 0."""
    finished: list[float]
    """Scores of the trial's earlier runs."""
    reader: RowReader = field(init=False)
    reported: int = 0
    """Parts of the budget whose scores have been reported."""
    pruned: bool = False

    def __post_init__(self) -> None:
        self.reader = RowReader(self.folder)

    @property
    def name(self) -> str:
        return self.folder.name


class Tuner:
    """Runs the trials of all algorithms. The caller holds `locks`: the machine's and the folder's."""

    def __init__(
        self,
        folder: TuningFolder,
        stop: StopSignal,
        progress: TuningProgress,
        locks: Sequence[Lock],
        on_trial: Callable[[], None],
    ) -> None:
        """Open the searches. `on_trial` is called after every trial."""
        self.folder, self.tuning = folder, folder.tuning
        self.stop, self.progress, self.on_trial = stop, progress, on_trial
        self.locks = [lock for lock in locks if lock.descriptor is not None]
        self.searches = open_searches(folder)
        self.ended = [result for result in self.results() if result.state != "running"]
        """The trials that have ended."""
        self._next_read = 0.0

    def results(self) -> list[TrialResult]:
        """Return the trials of all algorithms."""
        return [result for search in self.searches.values() for result in search.results()]

    def run_all(self) -> None:
        """Run all trials that have not ended; a trial that fails does not stop the others.

        Algorithms take turns, so that a machine that slows down affects all of them equally. Raises
        Interrupted after a stop signal, once the current run has saved its checkpoint.
        """
        for number in range(self.tuning.trials):
            for search in self.searches.values():
                self.stop.check()
                trial = search.begin(number)
                if trial is not None:
                    self._run_trial(search, trial)
                    self.on_trial()

    def _run_trial(self, search: Search, trial: Trial) -> None:
        """Train all runs of a trial and end it as complete, pruned or failed."""
        algorithm, scores = search.config.algorithm, list[float]()
        try:
            for index, (env, seed) in enumerate(self.tuning.runs_per_trial):
                try:
                    config = self.folder.config(algorithm, trial.settings, env, seed)
                except UsageError as error:
                    raise TrialFailed(str(error)) from None
                place = self.folder.trial_folder(algorithm, trial.number) / run_name(env, seed)
                scores.append(self._run(CurrentRun(trial, config, place, index, scores)))
        except TrialPruned:
            trial.prune()
        except TrialFailed as failure:
            trial.fail(str(failure))
        else:
            trial.complete(joint_score(scores))
        result = search.results()[trial.number]
        self.ended.append(result)
        self.progress.print_line(trial_line(result, self.tuning.trials))

    def _run(self, run: CurrentRun) -> float:
        """Train a run, unless it is completed, and return its score. Raises TrialFailed, TrialPruned, and
        Interrupted after a stop signal."""
        record = read_json(run.folder / RECORD)
        code = 0
        if record.get("status") != "completed":
            self.stop.check()
            code = self._train(run)
            record = read_json(run.folder / RECORD)
        status = str(record.get("status", "failed"))
        if self.stop.received and status != "completed":
            raise Interrupted(self.stop.number)
        if run.pruned and status == "interrupted":
            self._note(run, record, "pruned")
            raise TrialPruned
        if status == "interrupted":
            raise RunError(f"{run.folder} was stopped by another process; the same command continues it")
        if status != "completed":
            reason = describe_exit(code) or failure_reason(run.folder / LOG)
            self._note(run, record, "failed")
            raise TrialFailed(f"{run.name}: {reason}")
        score = self._report(run, completed=True)
        if score is None:
            raise TrialFailed(f"{run.name}: the run is completed and has no rows in metrics.jsonl")
        self._note(run, record, "completed", score)
        if run.pruned:
            raise TrialPruned
        return score

    def _train(self, run: CurrentRun) -> int:
        """Start the run, or continue it from its checkpoint; return the exit code of the training."""
        resumes, tuning = (run.folder / CONFIG_FILE).exists(), self.tuning
        start = ["--resume"] if resumes else ["--config", str(write_config(run.folder, run.config))]
        budget = ["--total-timesteps", str(tuning.total_timesteps)]
        if tuning.duration is not None:
            budget = ["--duration", f"{tuning.duration:.9g}"]
        choice = ("--algorithm", run.config.algorithm, "--mode", run.config.mode)
        command = rlcb_command("train", *choice, *start, "--output-dir", run.folder, *budget)
        pids: list[int] = []

        def on_start(pid: int) -> None:
            pids.append(pid)
            for lock in self.locks:
                lock.note(child=pid)

        def on_poll() -> None:
            if time.monotonic() < self._next_read:
                return
            self._next_read = time.monotonic() + READ_SECONDS
            self._report(run)
            self._show(run)
            if run.pruned and pids:
                os.kill(pids.pop(), signal.SIGTERM)  # the run saves a checkpoint and its record

        self._show(run)
        descriptors = [lock.descriptor for lock in self.locks if lock.descriptor is not None]
        return run_logged(command, run.folder / LOG, self.stop, on_start, on_poll, descriptors)

    def _report(self, run: CurrentRun, completed: bool = False) -> float | None:
        """Report the scores after all parts of the budget that the run has passed, and note whether to prune
        the trial. Returns the score of the run after the last of them, None if there is none."""
        rows, tuning = run.reader.read(), self.tuning
        passed = int(position(rows[-1], tuning.timed) / tuning.budget * BUDGET_PARTS) if rows else 0
        passed = BUDGET_PARTS if completed else min(passed, BUDGET_PARTS - 1)
        score = None
        for part in range(run.reported + 1, passed + 1):
            seen = window_of_part(rows, part, tuning.budget, run.config.env.num_envs, tuning.timed)
            if seen is None:
                continue
            score = normalised(seen.mean_return, run.config)
            run.reported = part
            if not run.pruned:
                step = run.index * BUDGET_PARTS + part - 1
                run.pruned = run.trial.report(step, joint_score(run.finished, score))
        return score

    def _note(
        self, run: CurrentRun, record: Mapping[str, Any], status: str, score: float | None = None
    ) -> None:
        """Store what a run has reached with its trial."""
        rows, tuning = run.reader.read(), self.tuning
        seen = window_of_part(rows, BUDGET_PARTS, tuning.budget, run.config.env.num_envs, tuning.timed)
        run.trial.note_run(
            run.name,
            {
                "status": status,
                "seconds": round(float(rows[-1]["time/elapsed_seconds"]), 3) if rows else 0.0,
                "timesteps": int(rows[-1]["timesteps"]) if rows else 0,
                "return": None if seen is None or status != "completed" else seen.mean_return,
                "episodes": None if seen is None else seen.episodes,
                "is_short": seen is not None and seen.is_short,
                "score": score,
                "entropy": rows[-1]["train/entropy"] if rows else None,
                "error": record.get("error"),
            },
        )

    def _show(self, run: CurrentRun) -> None:
        """Update the progress."""
        rows = run.reader.rows
        share = min(1.0, position(rows[-1], self.tuning.timed) / self.tuning.budget) if rows else 0.0
        self.progress.show(self.tuning, self.ended, run.config, run.trial.number, run.index + share, rows)


def open_searches(folder: TuningFolder) -> dict[str, Search]:
    """Return the search of each algorithm, by its name. Raises UsageError or RunError."""
    storage = open_storage(folder.root)
    return {
        name: Search(folder.tuning, folder.base_config(name), storage) for name in folder.tuning.algorithms
    }


def write_config(folder: Path, config: Config) -> Path:
    """Write the configuration that a run starts with, beside its folder's other files; return the path."""
    path = folder.with_name(f"{folder.name}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, dump_config(config).encode())
    return path
