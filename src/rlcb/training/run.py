"""The loop of a training run, from locking its folder to the last checkpoint and the record.

`train` runs in every process of a run. However a run ends, a checkpoint holds its last update boundary or an
earlier one to resume from, and benchmark_metrics.json says how it ended.
"""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlcb import cpu
from rlcb.config.budget import Budget
from rlcb.config.config import Config
from rlcb.errors import Interrupted, PeerLost
from rlcb.processes.signals import StopSignal
from rlcb.rl.communicator import Communicator
from rlcb.training.base import LearningProcess, MakeTrainer, ProcessSetup, Update
from rlcb.training.checkpoint import newest_checkpoint
from rlcb.training.console import describe_pinning, print_settings
from rlcb.training.profiler import maybe_profile
from rlcb.training.recorder import Clock, Recorder
from rlcb.training.results import failure_recorded
from rlcb.training.run_folder import config_of_checkpoint, require_same_run
from rlcb.training.run_spec import RunSpec
from rlcb.training.tracking import track_run
from rlcb.training.trainer import Trainer
from rlcb.training.worker_context import WorkerContext

logger = logging.getLogger(__name__)

BETWEEN_SECONDS = 60.0
"""So much longer than asked, nodes that learn by themselves may wait with a snapshot for their average."""
LAST_SHARE = 0.9999  # keeps an annealed learning rate above 0, also past the end of a timed budget


def learning_rate_of(config: Config, budget: Budget, updates: int, elapsed: float) -> float:
    """Return the learning rate after `updates` updates and `elapsed` seconds: constant, or annealed linearly
    to 0 over the budget."""
    training = config.training
    if training.lr_schedule == "constant":
        return training.learning_rate
    return training.learning_rate * (1 - min(budget.share_used(updates, elapsed), LAST_SHARE))


def train(
    spec: RunSpec,
    context: WorkerContext | None = None,
    communicator: Communicator | None = None,
    make_trainer: MakeTrainer = Trainer,
) -> int:
    """Train until the budget ends or a signal comes; return the exit code. Every process of a run calls it.

    The defaults are for a run of one process. Raises UsageError before anything is written, and RunError if
    the run fails later; its record then has the status failed.
    """
    context, communicator = context or WorkerContext(), communicator or Communicator()
    config, folder = spec.config, spec.folder
    cpu.set_torch_threads(spec.num_threads)
    clock, budget = Clock(), Budget.of(config)
    recorder: Recorder | None = None

    def heartbeat() -> None:
        context.check()
        if recorder is not None:
            recorder.progress.refresh(clock.elapsed())

    memory = partial(context.shared_memory, config.parallel)
    trainer = make_trainer(ProcessSetup(config, communicator, spec.num_threads, heartbeat, memory))
    with contextlib.closing(folder), contextlib.closing(trainer), contextlib.ExitStack() as stack:
        checkpoint = prepare(spec, trainer)
        if communicator.is_main:
            context.report_folder(folder.root)
        if checkpoint is not None:
            clock.before = checkpoint["elapsed_seconds"]
            clock.update_seconds = checkpoint.get("update_seconds", 0.0)  # older checkpoints lack it
        trainer.exchange([])
        if communicator.is_main:
            with context.wait_for_others():
                tracking = stack.enter_context(track_run(config, folder, spec.resume))
            print_settings(config, budget, facts_of(spec, trainer, tracking), folder.root)
            recorder = Recorder(config, folder, trainer, clock, checkpoint, context, tracking)
            recorder.pinning = spec.pinning
        try:
            interruption = Loop(spec, trainer, recorder, clock, budget, context).run()
            if recorder is not None and interruption is None:
                recorder.finish("completed", recorder.save("final"))
            elif recorder is not None:
                recorder.finish("interrupted", recorder.save_step())
        except BaseException:
            if recorder is not None:
                recorder.finish_failed()
            raise
    return 0 if interruption is None else interruption.exit_code


def facts_of(spec: RunSpec, trainer: LearningProcess, tracking: Any) -> dict[str, str]:
    """Return what a run prints beside its configuration, as {name: text}. `tracking` may be None."""
    tracked = {} if tracking is None else {"tracking": tracking.text()}
    return {**trainer.facts(), **describe_pinning(spec.pinning), **tracked}


def prepare(spec: RunSpec, trainer: LearningProcess) -> dict[str, Any] | None:
    """Lock the run's folder; if the run is resumed, load and return the content of its newest checkpoint.

    Returns None for a new run. Raises UsageError if the folder is in use, holds another run, or if a resumed
    run has other settings.
    """
    config, folder, found = spec.config, spec.folder, None
    if spec.resume:
        if trainer.communicator.is_main:
            folder.lock()
        trainer.communicator.barrier()  # from here on no other run writes there
        found = trainer.communicator.once(lambda: newest_checkpoint(folder.checkpoints, folder.stem))
    if found is not None:
        require_same_run(config_of_checkpoint(*found), config, compare_folders=False)
        trainer.load(found[1])
    trainer.communicator.broadcast_(trainer.learner.parameters)
    trainer.communicator.barrier()  # all have read before the main process changes the folder
    if trainer.communicator.is_main:
        if found is None:
            if spec.resume and folder.ended_before_checkpoint():
                logger.warning(
                    "no checkpoint in %s yet: the run starts from the beginning", folder.checkpoints
                )
            folder.claim(config, spec.overwrite or spec.resume)
        else:
            folder.reopen(config, found[0], trainer.counters.timesteps)
    return None if found is None else found[1]


@dataclass
class Loop:
    """The updates of a run, in one of its processes."""

    spec: RunSpec
    trainer: LearningProcess
    recorder: Recorder | None
    """In the main process only."""
    clock: Clock
    budget: Budget
    context: WorkerContext

    def run(self) -> Interrupted | None:
        """Make updates until the budget ends or the run is interrupted; return the interruption, if any."""
        try:
            with self.context.breakable():
                signal_number = self._make_updates()
            return Interrupted(signal_number) if signal_number else None
        except Interrupted as interruption:
            return interruption
        except PeerLost:  # if the run is being stopped, another process may have left first
            try:
                self.context.check()
            except Interrupted as interruption:
                return interruption
            raise

    def _make_updates(self) -> int:
        """Make updates until the budget ends or a stop signal arrives; return the signal's number, or 0.

        Every process follows the main process's clock.
        """
        trainer, clock = self.trainer, self.clock
        if self.recorder is not None:
            self.recorder.monitor.start()
        profile_update = maybe_profile(
            self.spec.trace_folder if trainer.communicator.is_main else None, "learner"
        )
        trainer.communicator.barrier()  # the time of the run starts when all processes are ready
        clock.start()
        # The main process always snapshots the first boundary, so that a run never loses its first update.
        elapsed, last_snapshot, signal_number = clock.before, -math.inf, 0
        while not signal_number and trainer.may_begin(self.budget, elapsed, clock.update_seconds):
            trainer.take_state = self._state_due(elapsed + clock.update_seconds - last_snapshot)
            learning_rate = self._learning_rate(elapsed)
            with profile_update():
                update = trainer.iterate(learning_rate)
            self._record(update, learning_rate)
            now, signal_number = trainer.communicator.boundary(clock.elapsed(), self.context.stop_requested())
            elapsed, clock.update_seconds = now, now - elapsed
            last_snapshot = elapsed if trainer.take_state else last_snapshot
        trainer.take_state = True
        self._record(trainer.finish(), self._learning_rate(elapsed))
        trainer.learner.reduction.gather_state()
        trainer.exchange([])
        if self.recorder is not None:
            self.recorder.take_final_snapshot()
        return signal_number

    def _state_due(self, seconds: float) -> bool:
        """Return whether to take the state after the next update, `seconds` after it was taken last.

        Between two averages of nodes that learn by themselves it costs one more average.
        """
        due, next_update = self.spec.config.logging, self.trainer.counters.updates + 1
        if next_update % due.checkpoint_interval == 0 or seconds >= due.snapshot_seconds + BETWEEN_SECONDS:
            return True
        return seconds >= due.snapshot_seconds and self.trainer.nodes_agree_after(next_update)

    def _learning_rate(self, elapsed: float) -> float:
        return learning_rate_of(self.spec.config, self.budget, self.trainer.counters.updates, elapsed)

    def _record(self, update: Update | None, learning_rate: float) -> None:
        if update is not None and self.recorder is not None:
            self.recorder.after_update(update, learning_rate)


def train_in_one_process(spec: RunSpec) -> int:
    """Train in this process (the sequential mode) until the end or a stop signal; return the exit code."""
    with StopSignal() as stop:
        context = WorkerContext(stop=stop)
        with failure_recorded(spec, context):
            return train(spec, context)
