"""Runs a study: one run after another as the real training script, then the evaluation of its checkpoint."""

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
from rlcb.processes.subprocesses import describe_exit, run_logged
from rlcb.study.console import Outcome, StudyProgress, evaluation_text, result_text, row_text
from rlcb.study.folder import StudyFolder
from rlcb.study.state import EVALUATION_LOG, START_SECONDS, TRAINING_LOG, Estimate, last_row, reason_in
from rlcb.study.study import PlannedRun
from rlcb.text import clock
from rlcb.training.results import write_failed_record
from rlcb.training.run_folder import CONFIG_FILE, RunFolder, config_of_run

READ_SECONDS = 1.0  # between two looks at what a run has written


class Runner:
    """Brings runs of a study to their end, in this process's time and under its lock."""

    def __init__(
        self, folder: StudyFolder, stop: StopSignal, progress: StudyProgress, lock: Lock, retry_failed: bool
    ) -> None:
        self.folder, self.stop, self.progress, self.lock = folder, stop, progress, lock
        self.retry_failed = retry_failed
        self.states = folder.states()
        self.estimate = Estimate(folder.study, self.states)
        self.cells: Sequence[PlannedRun] = ()
        """Those that are to be brought to their end now."""
        self._next_look = 0.0
        self._headed = ""

    def run_all(self, cells: Sequence[PlannedRun]) -> list[Outcome]:
        """Run what is not done yet. A run that fails does not keep the others from running. Raises
        Interrupted after a signal, when the run that it met has saved."""
        self.cells, outcomes, rested = cells, [], True
        for cell in cells:
            state = self.states[cell.name]
            if state.done:
                outcomes.append(Outcome(cell, "completed"))
                continue
            if state.status == "failed" and not self.retry_failed:
                outcomes.append(Outcome(cell, "failed", f"{self._reason(cell)} (in an earlier start)"))
                continue
            if not rested and self.folder.study.cooldown:
                self.stop.sleep(self.folder.study.cooldown, partial(self._show, cell, "cooling down"))
            rested = False
            outcomes.append(self._run_locked(cell))
        return outcomes

    def _run_locked(self, cell: PlannedRun) -> Outcome:
        """Run a cell while no other process, on whatever machine, has it."""
        place = self.folder.run_folder(cell)
        lock = Lock(place / "study.lock", f"{cell.title} is run elsewhere")
        try:
            place.mkdir(parents=True, exist_ok=True)
            lock.acquire(self.folder.root)
        except UsageError as error:
            return self._failed(cell, str(error))
        except (OSError, RunError):
            pass  # a file system without locks; what cannot be written shows when the run begins
        try:
            # Another process may have come farther with it meanwhile.
            self.states[cell.name] = self.folder.state(cell)
            return self._run(cell, lock)
        finally:
            lock.release()

    def _run(self, cell: PlannedRun, lock: Lock) -> Outcome:
        self.stop.check()
        if self.states[cell.name].status != "completed":
            reason = self._train(cell, lock)
            if reason is not None:
                return self._failed(cell, reason)
        state = self.states[cell.name]
        if state.wants_evaluation:
            reason = self._evaluate(cell, lock)
            if reason is not None:
                return self._failed(cell, f"evaluation: {reason}")
        self.estimate.learn(cell, self.states[cell.name])
        return Outcome(cell, "completed")

    def _train(self, cell: PlannedRun, lock: Lock) -> str | None:
        """Begin a run, or go on with it; returns why it failed, None if it is completed."""
        state, place = self.states[cell.name], self.folder.run_folder(cell)
        load = measure_load()
        self.stop.check()
        how = f"goes on, {clock(state.elapsed_seconds)} trained so far" if state.begun else "starts"
        self._head(cell, f"{how} ({time.strftime('%H:%M:%S')})")
        warning = busy_warning(load)
        if warning is not None:
            self._say(warning)
        choice = ("--algorithm", cell.algorithm, "--mode", cell.mode)
        command = rlcb_command("train", *choice, *self.folder.training_flags(cell, state))
        facts = {"run": cell.name, "number": cell.number}
        self.folder.log("start", **facts, resumed=state.begun, load=load, command=shlex.join(command))
        code = self._call(cell, command, place / TRAINING_LOG, lock, "training")
        if code != 0 and not self.stop.received:
            self._leave_record(place)
        state = self.states[cell.name] = self.folder.state(cell)
        self.folder.log("end", **facts, exit_code=code, status=state.status)
        if state.status == "completed":
            self._say(result_text(state))
            self.stop.check()
            return None
        if self.stop.received:
            self._say(f"{state.status} after {clock(state.elapsed_seconds)}")
            raise Interrupted(self.stop.received[0])
        if state.status == "interrupted":
            return "it was interrupted by somebody else; the next start goes on with it"
        return describe_exit(code) or self._reason(cell)

    def _evaluate(self, cell: PlannedRun, lock: Lock) -> str | None:
        """Evaluate the final checkpoint; returns why that failed."""
        place = self.folder.run_folder(cell)
        checkpoint = RunFolder(place, self.folder.configs[cell.name]).checkpoint("final")
        episodes = self.folder.study.evaluate_episodes
        command = rlcb_command("evaluate", "--checkpoint", checkpoint, "--num-episodes", episodes)
        if self._headed != cell.name:
            self._head(cell, "evaluation of its final checkpoint")
        code = self._call(cell, command, place / EVALUATION_LOG, lock, "evaluating")
        state = self.states[cell.name] = self.folder.state(cell)
        self.folder.log("evaluated", run=cell.name, number=cell.number, exit_code=code)
        if state.evaluation is not None:
            self._say(evaluation_text(state.evaluation))
        self.stop.check()
        if code == 0 and state.evaluation is not None:
            return None
        return describe_exit(code) or reason_in(place / EVALUATION_LOG)

    def _call(self, cell: PlannedRun, command: list[str], log: Path, lock: Lock, phase: str) -> int:
        """Run a program for a cell, showing how the study goes on meanwhile."""
        self._show(cell, phase)

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
            lambda: self._show(cell, phase, time.monotonic() - started),
            descriptors,
        )

    def _show(self, cell: PlannedRun, phase: str, seconds: float = 0.0) -> None:
        """Move the bar, once a second. `seconds` is how long the phase has gone on."""
        if seconds and time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + READ_SECONDS
        cells = self.cells
        row = last_row(self.folder.run_folder(cell)) if phase == "training" else {}
        fps = row.get("time/fps_average")
        whole = [self.estimate.whole(each, fps) for each in cells]
        left = [
            self._left_of_current(cell, phase, row, seconds)
            if each is cell
            else self.estimate.left(each, self.states[each.name], fps)
            for each in cells
            if each is cell or self.retry_failed or self.states[each.name].status != "failed"
        ]
        place = f"{cell.number}/{len(self.folder.study.cells)}"
        what = f"{place} {cell.algorithm} {cell.mode} {cell.game} {cell.seed} · "
        what += row_text(row) if phase == "training" else phase
        if self.stop.received:
            what = f"stopping: {what}"
        known = [each for each in left if each is not None]
        if len(known) < len(left) or None in whole:
            done = sum(self.states[each.name].done for each in cells)
            self.progress.show(done / len(cells), None, what)
            return
        total = sum(each for each in whole if each is not None)
        rests = self.folder.study.cooldown * max(0, sum(each > 0 for each in known) - 1)
        self.progress.show(1 - min(1.0, sum(known) / total), sum(known) + rests, what)

    def _left_of_current(
        self, cell: PlannedRun, phase: str, row: dict[str, Any], seconds: float
    ) -> float | None:
        evaluation = self.estimate.evaluation(cell)
        if phase == "evaluating":
            return max(1.0, evaluation - seconds)
        state = self.states[cell.name]
        if phase != "training":
            return self.estimate.left(cell, state)
        training = self.estimate.training(cell, row.get("time/fps_average"))
        if training is None:
            return None
        elapsed = float(row.get("time/elapsed_seconds") or state.elapsed_seconds)
        if self.folder.study.timed:  # between two rows the clock goes on
            elapsed = max(elapsed, state.elapsed_seconds + seconds - START_SECONDS)
        return max(0.0, training - elapsed) + evaluation

    def _head(self, cell: PlannedRun, text: str) -> None:
        self._headed = cell.name
        self.progress.say(f"[{cell.number}/{len(self.folder.study.cells)}] {cell.title}: {text}")

    def _say(self, text: str) -> None:
        """Print a line below the head of a run."""
        self.progress.say(f"      {text}")

    def _failed(self, cell: PlannedRun, reason: str) -> Outcome:
        if self._headed != cell.name:
            self._head(cell, "not run")
        self._say(f"FAILED: {reason}")
        self.states[cell.name] = self.folder.state(cell)
        return Outcome(cell, "failed", reason)

    def _reason(self, cell: PlannedRun) -> str:
        return reason_in(self.folder.run_folder(cell) / TRAINING_LOG)

    def _leave_record(self, place: Path) -> None:
        """Of a run that died before it could say so, have its folder say that it failed."""
        if (place / CONFIG_FILE).exists() and not (place / "benchmark_metrics.json").exists():
            config = config_of_run(place)
            write_failed_record(RunFolder(place, config), config)


def in_turn(lock: Lock, root: Path, stop: StopSignal, progress: StudyProgress) -> None:
    """Take the lock of the machine, waiting for whoever holds it: a scheduler that starts two tasks on one
    node has given both their time."""
    said = False

    def wait(holder: str) -> None:
        nonlocal said
        stop.check()
        if not said:
            progress.say(f"waiting: {holder} (pid {os.getpid()} waits)")
        said = True

    lock.acquire(root, wait)
