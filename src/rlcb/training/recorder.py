"""Records a run: prints its progress, and writes its metrics files, its checkpoints and its final record."""

from __future__ import annotations

import logging
import time
from collections import deque
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rlcb.config.budget import Budget
from rlcb.config.config import Config
from rlcb.processes.pinned_cores import Pinning
from rlcb.rl.statistics import EpisodeStatistics
from rlcb.rl.timing import PHASES
from rlcb.training.base import LearningProcess, Update
from rlcb.training.checkpoint import keep_newest, save_checkpoint, step_of
from rlcb.training.console import RunProgress, print_summary
from rlcb.training.metrics_writer import MetricsWriter
from rlcb.training.resource_monitor import ResourceMonitor
from rlcb.training.results import write_record
from rlcb.training.run_folder import RunFolder
from rlcb.training.tracking import Tracking, final_facts
from rlcb.training.worker_context import WorkerContext

logger = logging.getLogger(__name__)

FINAL_FPS_SECONDS = 30.0


class Clock:
    """Measures the training time of a run in seconds, including the time before it was resumed."""

    def __init__(self) -> None:
        self.before = 0.0
        """Training time before this process started."""
        self.update_seconds = 0.0
        """Duration of the last update, also if it was made before the run was resumed."""
        self._started: float | None = None

    def start(self) -> None:
        """Start measuring."""
        self._started = time.perf_counter()

    def in_process(self) -> float:
        """Return the training time in this process; 0 before `start`."""
        return 0.0 if self._started is None else time.perf_counter() - self._started

    def elapsed(self) -> float:
        """Return the training time of the whole run."""
        return self.before + self.in_process()


class Recorder:
    """Records a run in its main process; the run loop (training/run.py) calls it after every update."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        trainer: LearningProcess,
        clock: Clock,
        checkpoint: dict[str, Any] | None,
        context: WorkerContext,
        tracking: Tracking | None = None,
    ) -> None:
        """Open the metrics files and take the first snapshot. `checkpoint` is what the run resumes from.

        `context` is the main process's. `tracking` passes the run to an experiment tracker.
        """
        self.config = config
        self.folder = folder
        self.trainer = trainer
        self.clock = clock
        self.context = context
        self.tracking = tracking
        self.budget = Budget.of(config)
        self.start_time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.pinning: Pinning = ()
        self.episodes = EpisodeStatistics()
        self.peak_before_gb = 0.0
        self.best: dict[str, Any] | None = None
        if checkpoint is not None:
            self.start_time = checkpoint["start_time"]
            self.peak_before_gb = checkpoint["peak_memory_gb"]
            self.episodes.load(checkpoint["episodes"])
        updates = trainer.counters.updates
        resume_update = None if checkpoint is None else updates
        self.writer = MetricsWriter(folder.logs, config.logging.tensorboard, resume_update)
        self.monitor = ResourceMonitor(config.logging.memory_interval_seconds, context.root_process)
        self.progress = RunProgress(config, self.budget, updates, clock.elapsed())
        self.first_timesteps = trainer.counters.timesteps
        self.boundaries = deque([(self.first_timesteps, clock.elapsed())])
        """(timesteps, seconds) at each update boundary of the last FINAL_FPS_SECONDS."""
        if checkpoint is not None and "boundaries" in checkpoint:  # checkpoints of older versions lack it
            self.boundaries = deque(checkpoint["boundaries"])
        self.updates = updates
        self.saved_at = (updates, clock.elapsed())
        self.snapshot = self._take_snapshot(clock.elapsed(), clock.update_seconds)
        self.phases = mean_phases(trainer.phase_seconds)

    def _take_snapshot(self, elapsed: float, update_seconds: float) -> dict[str, Any]:
        """Return the content of a checkpoint of the current update boundary.

        `elapsed` is the training time until the boundary, `update_seconds` the duration of the last update.
        """
        return {
            "algorithm": self.config.algorithm,
            "mode": self.config.mode,
            "config": self.config.model_dump(mode="json"),
            **self.trainer.state(),
            "start_time": self.start_time,
            "elapsed_seconds": elapsed,
            "update_seconds": update_seconds,
            "peak_memory_gb": max(self.peak_before_gb, self.monitor.peak_gb),
            "episodes": self.episodes.state(),
            "boundaries": list(self.boundaries),
        }

    def after_update(self, update: Update, learning_rate: float) -> None:
        """Record a finished update: take a snapshot, write a metrics row, print, save a due checkpoint."""
        before, elapsed = self.snapshot, self.clock.elapsed()
        if self.episodes.add(update.episodes):
            self.best = before  # its parameters acted in these episodes, or slightly newer ones did
        last_timesteps, last_elapsed = self.boundaries[-1]
        counters, phases = self.trainer.counters, mean_phases(self.trainer.phase_seconds)
        self.boundaries.append((counters.timesteps, elapsed))
        while len(self.boundaries) > 2 and self.boundaries[1][1] <= elapsed - FINAL_FPS_SECONDS:
            self.boundaries.popleft()
        if self.trainer.take_state:
            self.snapshot = self._take_snapshot(elapsed, elapsed - last_elapsed)
        row = {
            "timesteps": counters.timesteps,
            "update": counters.updates,
            "time/elapsed_seconds": round(elapsed, 4),
            "time/fps": (counters.timesteps - last_timesteps) / (elapsed - last_elapsed),
            "time/fps_average": (counters.timesteps - self.first_timesteps) / (elapsed - self.clock.before),
            **self.episodes.row(),
            **{name if "/" in name else f"train/{name}": value for name, value in update.metrics.items()},
            "train/learning_rate": learning_rate,
            **{f"profile/{phase}_seconds": round(phases[phase] - self.phases[phase], 5) for phase in PHASES},
            "system/memory_gb": self.monitor.memory_gb,
            "system/cpu_percent": self.monitor.cpu_percent,
        }
        self.phases = phases
        self.writer.write(row)
        if self.tracking is not None:
            self.tracking.check()
        for line in update.notes:
            self.progress.print_line(line)
        self.progress.update(row)
        seconds = self.snapshot["elapsed_seconds"] - self.saved_at[1]
        interval = self.config.logging.checkpoint_interval
        # The count may rise by more than one: A3C's first worker sees only its own updates.
        passed, self.updates = counters.updates // interval > self.updates // interval, counters.updates
        if passed or seconds >= self.config.logging.checkpoint_minutes * 60:
            self.save_step()

    def take_final_snapshot(self) -> None:
        """Take a snapshot of the last update boundary; the trainer must have exchanged its state there."""
        self.snapshot = self._take_snapshot(self.boundaries[-1][1], self.clock.update_seconds)

    def save_step(self) -> Path:
        """Write the snapshot as a step checkpoint, named after its timesteps; return its path."""
        return self.save(f"step_{self.snapshot['counters']['timesteps']}")

    def save(self, kind: str) -> Path:
        """Write the snapshot as the checkpoint `kind` (`final` or `step_<n>`) and return its path.

        Also writes the best checkpoint if it is newer, and deletes old step checkpoints.
        """
        path = self.folder.checkpoint(kind)
        save_checkpoint(path, self.snapshot)
        if self.best is not None:
            save_checkpoint(self.folder.checkpoint("best"), self.best)
            self.best = None
        if step_of(path) is not None:
            keep_newest(self.folder.checkpoints, self.folder.stem, self.config.logging.keep_checkpoints)
        self.saved_at = (self.snapshot["counters"]["updates"], self.snapshot["elapsed_seconds"])
        return path

    def finish(self, status: str, checkpoint: Path | None) -> None:
        """Close the metrics files, write the record as of the snapshot, and print the summary.

        `status` is completed, interrupted or failed; `checkpoint` is the last one saved.
        """
        self.progress.close()
        self.monitor.stop()
        self.writer.close()
        snapshot, counters = self.snapshot, self.snapshot["counters"]
        if status != "completed":
            self.writer.keep_until(counters["updates"])  # the rows end where the checkpoint does
        elapsed = snapshot["elapsed_seconds"]
        episodes = EpisodeStatistics()
        episodes.load(snapshot["episodes"])
        (first_timesteps, first_elapsed), (last_timesteps, last_elapsed) = (
            self.boundaries[0],
            self.boundaries[-1],
        )
        window = last_elapsed - first_elapsed
        peak = max(self.peak_before_gb, self.monitor.peak_gb)
        names = self.trainer.process_names()
        metrics = {
            "start_time": self.start_time,
            "end_time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "duration_hours": round(elapsed / 3600, 9),
            "total_timesteps": counters["timesteps"],
            "total_updates": counters["updates"],
            "total_episodes": episodes.count,
            "average_fps": round(counters["timesteps"] / elapsed, 3) if elapsed else 0.0,
            "final_fps": round((last_timesteps - first_timesteps) / window, 3) if window else 0.0,
            "performance": episodes.performance(),
            "resource_usage": {**self.monitor.usage(), "peak_memory_gb": round(peak, 4)},
            "time_breakdown": breakdown(mean_phases(snapshot["phase_seconds"]), elapsed),
            "workers": [
                {
                    "name": names[rank],
                    "threads": threads,
                    "cpus": list(self.pinning[rank]) if rank < len(self.pinning) else None,
                    "time_breakdown": breakdown(phases, elapsed),
                }
                for rank, (threads, phases) in enumerate(
                    zip(snapshot["threads"], snapshot["phase_seconds"], strict=True)
                )
            ],
        }
        metrics |= self.trainer.metrics() | self.trainer.communicator.metrics()
        record = self._write_record(status, metrics)
        print_summary(record, self.folder.root, checkpoint)

    def _write_record(self, status: str, metrics: dict[str, Any]) -> dict[str, Any]:
        """Write the record, and once more when the tracker has it: it says what became of the tracking."""

        def write() -> dict[str, Any]:
            told = {} if self.tracking is None else {"tracking": self.tracking.record()}
            return write_record(self.folder, self.config, status, metrics | told, self.trainer.model.kernels)

        record = write()
        if self.tracking is not None:
            with self.context.wait_for_others():
                self.tracking.finish(final_facts(record), status)
            record = write()
        return record

    def finish_failed(self) -> None:
        """Save the snapshot and write the record of a failed run.

        Errors on the way are logged and not raised, because they would hide why the run failed.
        """
        checkpoint = None
        try:
            if self.snapshot["counters"]["updates"] > self.saved_at[0]:
                checkpoint = self.save_step()
        except Exception as error:
            logger.error("could not save the last update of the failed run: %s", error)
        try:
            self.finish("failed", checkpoint)
        except Exception as error:
            logger.error("could not write the record of the failed run: %s", error)


def mean_phases(processes: list[dict[str, float]]) -> dict[str, float]:
    """Return the seconds of each phase as means over the processes."""
    return {phase: sum(process[phase] for process in processes) / len(processes) for phase in PHASES}


def breakdown(seconds: dict[str, float], total: float) -> dict[str, dict[str, float]]:
    """Return {phase: {seconds, share of `total`}}; `other` is the time outside of all phases."""
    parts = {**seconds, "other": max(0.0, total - sum(seconds.values()))}
    return {
        phase: {"seconds": round(value, 3), "share": round(value / total, 4) if total else 0.0}
        for phase, value in parts.items()
    }
