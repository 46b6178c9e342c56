"""A whole training run: the loop until the budget ends, and every file that it leaves.

However a run ends, its last update boundary is in a checkpoint or can be reached from one, and
benchmark_metrics.json says how it ended.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from src import cpu_utils
from src.budget import Budget
from src.checkpoint import keep_newest, newest_checkpoint, save_checkpoint, step_of
from src.collector import Episode
from src.config import Config
from src.console import Progress, print_settings, print_summary
from src.distributed import Communicator
from src.errors import Interrupted
from src.metrics import EpisodeStatistics, MetricsWriter
from src.monitor import ResourceMonitor
from src.record import write_record
from src.run_folder import RunFolder
from src.signals import StopSignal
from src.timing import PHASES
from src.trainer import Trainer

logger = logging.getLogger(__name__)

FINAL_FPS_UPDATES = 10


class Clock:
    """Seconds of training, those before a restart included."""

    def __init__(self) -> None:
        self.before = 0.0
        self._started: float | None = None

    def start(self) -> None:
        self._started = time.perf_counter()

    def in_process(self) -> float:
        return 0.0 if self._started is None else time.perf_counter() - self._started

    def elapsed(self) -> float:
        return self.before + self.in_process()


class Recorder:
    """Follows a run: statistics, console, metrics files, checkpoints, and the record at the end."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        trainer: Trainer,
        clock: Clock,
        checkpoint: dict[str, Any] | None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.trainer = trainer
        self.clock = clock
        self.budget = Budget.of(config)
        self.start_time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.episodes = EpisodeStatistics()
        self.peak_before_gb = 0.0
        self.best: dict[str, Any] | None = None
        resume_update = None
        if checkpoint is not None:
            self._load(checkpoint)
            resume_update = trainer.counters.updates
        self.writer = MetricsWriter(folder.logs, config.logging.tensorboard, resume_update)
        self.monitor = ResourceMonitor(config.logging.memory_interval_seconds)
        self.progress = Progress(config, self.budget, trainer.counters.updates, clock.elapsed())
        self.first_timesteps = trainer.counters.timesteps
        self.boundaries = deque([(self.first_timesteps, clock.elapsed())], maxlen=FINAL_FPS_UPDATES + 1)
        self.phases_before = dict(trainer.timer.seconds)
        self.saved_at = (trainer.counters.updates, clock.elapsed())
        self.snapshot = self.state()

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint of this update boundary."""
        return {
            "algorithm": self.config.algorithm,
            "mode": self.config.mode,
            "config": self.config.model_dump(mode="json"),
            **self.trainer.state(),
            "start_time": self.start_time,
            "elapsed_seconds": self.clock.elapsed(),
            "peak_memory_gb": self.peak_memory_gb(),
            "episodes": self.episodes.state(),
        }

    def _load(self, checkpoint: dict[str, Any]) -> None:
        self.start_time = checkpoint["start_time"]
        self.clock.before = checkpoint["elapsed_seconds"]
        self.peak_before_gb = checkpoint["peak_memory_gb"]
        self.episodes.load(checkpoint["episodes"])

    def peak_memory_gb(self) -> float:
        monitor: ResourceMonitor | None = getattr(self, "monitor", None)
        return max(self.peak_before_gb, monitor.peak_gb if monitor is not None else 0.0)

    def after_update(
        self, episodes: Iterable[Episode], figures: dict[str, float | None], learning_rate: float
    ) -> None:
        """Take in a finished update: row, console, snapshot, and a checkpoint when one is due."""
        before = self.snapshot
        if self.episodes.add(episodes):
            self.best = before  # the parameters that acted in these episodes
        counters, elapsed = self.trainer.counters, self.clock.elapsed()
        last_timesteps, last_elapsed = self.boundaries[-1]
        self.boundaries.append((counters.timesteps, elapsed))
        row = {
            "timesteps": counters.timesteps,
            "update": counters.updates,
            "time/elapsed_seconds": round(elapsed, 4),
            "time/fps": (counters.timesteps - last_timesteps) / (elapsed - last_elapsed),
            "time/fps_average": (counters.timesteps - self.first_timesteps) / self.clock.in_process(),
            **self.episodes.row(),
            **{f"train/{name}": value for name, value in figures.items()},
            "train/learning_rate": learning_rate,
            **self._phase_seconds(),
            "system/memory_gb": self.monitor.memory_gb,
            "system/cpu_percent": self.monitor.cpu_percent,
        }
        self.writer.write(row)
        self.progress.update(row)
        self.snapshot = self.state()
        updates_since = counters.updates - self.saved_at[0]
        minutes_since = (elapsed - self.saved_at[1]) / 60
        logging_config = self.config.logging
        if (
            updates_since >= logging_config.checkpoint_interval
            or minutes_since >= logging_config.checkpoint_minutes
        ):
            self.save_step()

    def _phase_seconds(self) -> dict[str, float]:
        """Seconds of each phase since the last row."""
        now = self.trainer.timer.seconds
        row = {
            f"profile/{phase}_seconds": round(now[phase] - self.phases_before[phase], 5) for phase in PHASES
        }
        self.phases_before = dict(now)
        return row

    def save_step(self) -> Path:
        return self.save(f"step_{self.snapshot['counters']['timesteps']}")

    def save(self, kind: str) -> Path:
        """Write the snapshot of the last update boundary as a checkpoint, and the best one if it is new."""
        path = self.folder.checkpoint(kind)
        save_checkpoint(path, self.snapshot)
        if self.best is not None:
            save_checkpoint(self.folder.checkpoint("best"), self.best)
            self.best = None
        if step_of(path) is not None:
            keep_newest(self.folder.checkpoints, self.folder.stem, self.config.logging.keep_checkpoints)
        counters = self.snapshot["counters"]
        self.saved_at = (counters["updates"], self.snapshot["elapsed_seconds"])
        return path

    def finish(self, status: str, checkpoint: Path | None) -> None:
        """Close the files, write the record of the last update boundary, print the summary."""
        self.progress.close()
        self.monitor.stop()
        self.writer.close()
        snapshot, counters = self.snapshot, self.snapshot["counters"]
        elapsed = snapshot["elapsed_seconds"]
        (first_timesteps, first_elapsed), (last_timesteps, last_elapsed) = (
            self.boundaries[0],
            self.boundaries[-1],
        )
        window = last_elapsed - first_elapsed
        usage = self.monitor.usage()
        figures = {
            "start_time": self.start_time,
            "end_time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "duration_hours": round(elapsed / 3600, 6),
            "total_timesteps": counters["timesteps"],
            "total_updates": counters["updates"],
            "total_episodes": self.episodes.count,
            "average_fps": round(counters["timesteps"] / elapsed, 3) if elapsed else 0.0,
            "final_fps": round((last_timesteps - first_timesteps) / window, 3) if window else 0.0,
            "performance": self.episodes.performance(),
            "resource_usage": {**usage, "peak_memory_gb": round(self.peak_memory_gb(), 4)},
            "time_breakdown": breakdown(snapshot["phase_seconds"], elapsed),
            "threads": {"trainer": self.trainer.num_threads},
        }
        record = write_record(self.folder, self.config, status, figures)
        print_summary(record, self.folder.root, checkpoint)


def breakdown(seconds: dict[str, float], total: float) -> dict[str, dict[str, float]]:
    """Phase -> {seconds, share of `total`}, with everything that no phase measured as `other`."""
    parts = {**seconds, "other": max(0.0, total - sum(seconds.values()))}
    return {
        phase: {"seconds": round(value, 3), "share": round(value / total, 4) if total else 0.0}
        for phase, value in parts.items()
    }


def learning_rate_of(config: Config, budget: Budget, updates: int, elapsed: float) -> float:
    """The learning rate of the update after `updates` updates: constant, or falling linearly over the
    budget."""
    training = config.training
    if training.lr_schedule == "constant":
        return training.learning_rate
    return training.learning_rate * (1 - budget.share_used(updates, elapsed))


def train(
    config: Config, folder: RunFolder, num_threads: int, resume: bool = False, overwrite: bool = False
) -> int:
    """Train in this process until the budget ends or a signal comes; returns the exit code.

    `resume` goes on from the folder's newest checkpoint, or from the beginning if there is none yet.
    Raises UsageError before anything is written, and RunError when the run fails later; its record then says
    so.
    """
    cpu_utils.set_torch_threads(num_threads)
    clock, budget = Clock(), Budget.of(config)
    with StopSignal() as stop:
        recorder: Recorder | None = None

        def heartbeat() -> None:
            stop.check()
            if recorder is not None:
                recorder.progress.refresh(clock.elapsed())

        trainer = Trainer(config, Communicator(), num_threads, heartbeat)
        checkpoint = None
        found = newest_checkpoint(folder.checkpoints, folder.stem) if resume else None
        if found is None:
            folder.claim(config, overwrite or resume)
        else:
            path, checkpoint = found
            trainer.load(checkpoint)
            folder.reopen(config, path, trainer.counters.timesteps)
        print_settings(config, budget, trainer.facts(), folder.root)
        recorder = Recorder(config, folder, trainer, clock, checkpoint)
        try:
            run_until_done(trainer, recorder, clock, budget)
        except Interrupted as interruption:
            recorder.finish("interrupted", recorder.save_step())
            return interruption.exit_code
        except BaseException:
            finish_failed(recorder)
            raise
        finally:
            trainer.close()
        recorder.finish("completed", recorder.save("final"))
    return 0


def run_until_done(trainer: Trainer, recorder: Recorder, clock: Clock, budget: Budget) -> None:
    """Update after update, until the budget ends."""
    recorder.monitor.start()
    clock.start()
    previous = clock.elapsed()
    update_seconds = 0.0
    while not budget.finished(trainer.counters.updates, previous, update_seconds):
        learning_rate = learning_rate_of(recorder.config, budget, trainer.counters.updates, previous)
        episodes, figures = trainer.iterate(learning_rate)
        recorder.after_update(episodes, figures, learning_rate)
        now = clock.elapsed()
        previous, update_seconds = now, now - previous


def finish_failed(recorder: Recorder) -> None:
    """Save the last update boundary and the record; a second failure (the disk is full) must not hide the
    first."""
    checkpoint = None
    try:
        if recorder.snapshot["counters"]["updates"] > recorder.saved_at[0]:
            checkpoint = recorder.save_step()
    except Exception as error:
        logger.error("could not save the last update of the failed run: %s", error)
    try:
        recorder.finish("failed", checkpoint)
    except Exception as error:
        logger.error("could not write the record of the failed run: %s", error)
