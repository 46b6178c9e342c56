"""Run a study: train its runs one after another with the training command, and evaluate each checkpoint."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlcb.errors import Interrupted, RunError, UsageError
from rlcb.paths import rlcb_command
from rlcb.processes.machine_load import busy_warning, measure_load
from rlcb.processes.machine_lock import Lock
from rlcb.processes.signals import StopSignal
from rlcb.processes.subprocesses import describe_exit, failure_reason, run_logged
from rlcb.study import slurm
from rlcb.study.console import Outcome, StudyProgress, evaluation_text, result_text
from rlcb.study.folder import StudyFolder
from rlcb.study.state import (
    EVALUATION_LOG,
    START_SECONDS,
    TRAINING_LOG,
    TimeEstimate,
    last_row,
)
from rlcb.study.study import PlannedRun, Study
from rlcb.text import clock
from rlcb.training.console import progress_parts
from rlcb.training.results import write_failed_record
from rlcb.training.run_folder import CONFIG_FILE, RunFolder, config_of_run

READ_SECONDS = 1.0  # how often the progress reads the newest row of a run


class Runner:
    """Train and evaluate runs of a study in subprocesses. The caller holds `lock`, the machine's lock."""

    def __init__(
        self, folder: StudyFolder, stop: StopSignal, progress: StudyProgress, lock: Lock, retry_failed: bool
    ) -> None:
        self.folder, self.stop, self.progress, self.lock = folder, stop, progress, lock
        self.retry_failed = retry_failed
        self.states = folder.states()
        self.estimate = TimeEstimate(folder.study, self.states)
        self.runs: Sequence[PlannedRun] = ()
        """The runs that `run_all` was given."""
        self._next_read = 0.0
        self._current_heading = ""

    def extend(self, study: Study) -> None:
        """Go on with a study that has further runs, and write it to its folder."""
        self.folder = StudyFolder(self.folder.root, study, self.folder.settings, exists=True)
        self.folder.write()
        self.states = self.folder.states()

    def run_all(self, runs: Sequence[PlannedRun]) -> list[Outcome]:
        """Run all runs that are not done; a run that fails does not stop the others.

        Raises Interrupted after a stop signal, once the current run has saved its checkpoint.
        """
        self.runs, outcomes, rested = runs, [], True
        for run in runs:
            state = self.states[run.name]
            if state.done:
                outcomes.append(Outcome(run, "completed"))
                continue
            if state.status == "failed" and not self.retry_failed:
                outcomes.append(Outcome(run, "failed", f"{self._reason(run)} (earlier)"))
                continue
            if not rested and self.folder.study.cooldown:
                self.stop.sleep(self.folder.study.cooldown, partial(self._show, run, "cooling down"))
            rested = False
            outcomes.append(self._run_locked(run))
        return outcomes

    def _run_locked(self, run: PlannedRun) -> Outcome:
        """Hold the lock of the run's folder, which excludes other processes and machines, and run it."""
        place = self.folder.run_folder(run)
        lock = Lock(place / "study.lock", f"another process runs {run.title}")
        try:
            place.mkdir(parents=True, exist_ok=True)
            lock.acquire(self.folder.root)
        except UsageError as error:
            return self._failed(run, str(error))
        except (OSError, RunError):
            pass  # the file system has no locks; an unwritable folder is reported when the training starts
        try:
            # Another process may have trained the run since its state was read.
            self.states[run.name] = self.folder.state(run)
            return self._run(run, lock)
        finally:
            lock.release()

    def _run(self, run: PlannedRun, lock: Lock) -> Outcome:
        self.stop.check()
        if self.states[run.name].status != "completed":
            reason = self._train(run, lock)
            if reason is not None:
                return self._failed(run, reason)
        state = self.states[run.name]
        if state.needs_evaluation:
            reason = self._evaluate(run, lock)
            if reason is not None:
                return self._failed(run, f"evaluation: {reason}")
        self.estimate.add(run, self.states[run.name])
        return Outcome(run, "completed")

    def _train(self, run: PlannedRun, lock: Lock) -> str | None:
        """Start or resume the training of a run; return the reason of a failure, None if it completed."""
        state, place = self.states[run.name], self.folder.run_folder(run)
        load = measure_load()
        self.stop.check()
        how = f"resumes after {clock(state.elapsed_seconds)} of training" if state.resumable else "starts"
        self._print_heading(run, f"{how} ({time.strftime('%H:%M:%S')})")
        warning = busy_warning(load)
        if warning is not None:
            self._print_detail(warning)
        choice = ("--algorithm", run.algorithm, "--mode", run.mode)
        command = rlcb_command("train", *choice, *self.folder.training_flags(run, state))
        command = [*slurm.step_command(run.nodes), *command]
        facts = {"run": run.name, "number": run.number}
        self.folder.log("start", **facts, resumed=state.resumable, load=load, command=shlex.join(command))
        code = self._call(run, command, place / TRAINING_LOG, lock, "training")
        if code != 0 and not self.stop.received:
            self._ensure_failed_record(place)
        state = self.states[run.name] = self.folder.state(run)
        self.folder.log("end", **facts, exit_code=code, status=state.status)
        if state.status == "completed":
            self._print_detail(result_text(state))
            self.stop.check()
            return None
        if self.stop.received:
            self._print_detail(f"{state.status} after {clock(state.elapsed_seconds)}")
            raise Interrupted(self.stop.received[0])
        if state.status == "interrupted":
            return "another process interrupted the training; the next start resumes it"
        return describe_exit(code) or self._reason(run)

    def _evaluate(self, run: PlannedRun, lock: Lock) -> str | None:
        """Evaluate the final checkpoint; return the reason of a failure, None if it succeeded."""
        place = self.folder.run_folder(run)
        checkpoint = RunFolder(place, self.folder.configs[run.name]).checkpoint("final")
        episodes = self.folder.study.evaluate_episodes
        command = rlcb_command("evaluate", "--checkpoint", checkpoint, "--num-episodes", episodes)
        if self._current_heading != run.name:
            self._print_heading(run, "evaluation of its final checkpoint")
        code = self._call(run, command, place / EVALUATION_LOG, lock, "evaluating")
        state = self.states[run.name] = self.folder.state(run)
        self.folder.log("evaluated", run=run.name, number=run.number, exit_code=code)
        if state.evaluation is not None:
            self._print_detail(evaluation_text(state.evaluation))
        self.stop.check()
        if code == 0 and state.evaluation is not None:
            return None
        return describe_exit(code) or failure_reason(place / EVALUATION_LOG)

    def _call(self, run: PlannedRun, command: list[str], log: Path, lock: Lock, phase: str) -> int:
        """Run a training or evaluation program and show the progress of the study; return its exit code."""
        self._show(run, phase)

        def on_start(pid: int) -> None:
            for each in (self.lock, lock):
                if each.descriptor is not None:
                    each.note(child=pid)

        descriptors = [each.descriptor for each in (self.lock, lock) if each.descriptor is not None]
        started = time.monotonic()
        return run_logged(
            command,
            log,
            self.stop,
            on_start,
            lambda: self._show(run, phase, time.monotonic() - started),
            descriptors,
        )

    def _show(self, run: PlannedRun, phase: str, seconds: float = 0.0) -> None:
        """Update the progress, at most once a second. `seconds` is the time since the phase started."""
        if seconds and time.monotonic() < self._next_read:
            return
        self._next_read = time.monotonic() + READ_SECONDS
        runs = self.runs
        row = last_row(self.folder.run_folder(run)) if phase == "training" else {}
        fps = row.get("time/fps_average")
        totals = [self.estimate.total(each, fps) for each in runs]
        remaining = [
            self._remaining_of_current(run, phase, row, seconds)
            if each is run
            else self.estimate.remaining(each, self.states[each.name], fps)
            for each in runs
            if each is run or self.retry_failed or self.states[each.name].status != "failed"
        ]
        text = f"{run.number}/{len(self.folder.study.runs)} {run.algorithm} {run.mode} {run.game} {run.seed}"
        parts = (progress_parts(row) if row else ["starting"]) if phase == "training" else [phase]
        if self.stop.received:
            parts = ["stopping", *parts]
        known = [each for each in remaining if each is not None]
        if len(known) < len(remaining) or None in totals:
            done = sum(self.states[each.name].done for each in runs)
            self.progress.show(done / len(runs), None, text, parts)
            return
        total = sum(each for each in totals if each is not None)
        if self.folder.study.max_hours is not None:  # rounds may be added until then
            limit = self.folder.study.max_hours * 3600
            left = limit - total + sum(known)
            self.progress.show(1 - left / limit, left, text, parts)
            return
        cooldowns = self.folder.study.cooldown * max(0, sum(each > 0 for each in known) - 1)
        self.progress.show(1 - min(1.0, sum(known) / total), sum(known) + cooldowns, text, parts)

    def _remaining_of_current(
        self, run: PlannedRun, phase: str, row: dict[str, Any], seconds: float
    ) -> float | None:
        """Return the remaining seconds of the current run, `seconds` after its phase started."""
        evaluation = self.estimate.evaluation(run)
        if phase == "evaluating":
            return max(1.0, evaluation - seconds)
        state = self.states[run.name]
        if phase != "training":
            return self.estimate.remaining(run, state)
        training = self.estimate.training(run, row.get("time/fps_average"))
        if training is None:
            return None
        elapsed = float(row.get("time/elapsed_seconds") or state.elapsed_seconds)
        if self.folder.study.timed:  # the newest row may be old
            elapsed = max(elapsed, state.elapsed_seconds + seconds - START_SECONDS)
        return max(0.0, training - elapsed) + evaluation

    def _print_heading(self, run: PlannedRun, text: str) -> None:
        self._current_heading = run.name
        self.progress.print_line(f"[{run.number}/{len(self.folder.study.runs)}] {run.title}: {text}")

    def _print_detail(self, text: str) -> None:
        """Print an indented line below the heading of a run."""
        self.progress.print_line(f"      {text}")

    def _failed(self, run: PlannedRun, reason: str) -> Outcome:
        if self._current_heading != run.name:
            self._print_heading(run, "not run")
        self._print_detail(f"FAILED: {reason}")
        self.states[run.name] = self.folder.state(run)
        return Outcome(run, "failed", reason)

    def _reason(self, run: PlannedRun) -> str:
        return failure_reason(self.folder.run_folder(run) / TRAINING_LOG)

    def _ensure_failed_record(self, place: Path) -> None:
        """Write a record with status `failed` for a run that ended without writing one."""
        if (place / CONFIG_FILE).exists() and not (place / "benchmark_metrics.json").exists():
            config = config_of_run(place)
            write_failed_record(RunFolder(place, config), config)


def acquire_in_turn(lock: Lock, root: Path, stop: StopSignal, progress: StudyProgress) -> None:
    """Acquire the lock of the machine, and wait while another study holds it.

    A scheduler may start two tasks of a job array on one node; they must not run at the same time.
    """
    printed = False

    def wait(holder: str) -> None:
        nonlocal printed
        stop.check()
        if not printed:
            progress.print_line(f"waiting: {holder} (pid {os.getpid()} waits)")
        printed = True

    lock.acquire(root, wait)
