"""A whole training run: from the folder that it takes to the last checkpoint that it leaves.

However a run ends, its last update boundary is in a checkpoint or can be reached from one, and
benchmark_metrics.json says how it ended.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from rlcb import cpu
from rlcb.config.budget import Budget
from rlcb.config.config import Config
from rlcb.errors import Interrupted, PeerLost
from rlcb.processes.signals import StopSignal
from rlcb.rl.communicator import Communicator
from rlcb.training.base import LearningProcess
from rlcb.training.checkpoint import newest_checkpoint
from rlcb.training.console import print_settings
from rlcb.training.profiler import maybe_profile
from rlcb.training.recorder import Clock, Recorder
from rlcb.training.results import failure_recorded
from rlcb.training.run_folder import config_of_checkpoint, require_same_run
from rlcb.training.run_spec import RunSpec
from rlcb.training.trainer import Trainer
from rlcb.training.worker_context import WorkerContext

logger = logging.getLogger(__name__)

LAST_SHARE = 0.9999  # an annealed learning rate is never 0, not even past the end of a timed budget


def learning_rate_of(config: Config, budget: Budget, updates: int, elapsed: float) -> float:
    """The learning rate of the update after `updates` updates: constant, or falling linearly over the
    budget."""
    training = config.training
    if training.lr_schedule == "constant":
        return training.learning_rate
    return training.learning_rate * (1 - min(budget.share_used(updates, elapsed), LAST_SHARE))


def train(
    spec: RunSpec,
    context: WorkerContext | None = None,
    communicator: Communicator | None = None,
    make_trainer: Callable[..., LearningProcess] = Trainer,
) -> int:
    """Train until the budget ends or a signal comes; return the exit code. Every process of a run calls it.

    The defaults are a run of one process. Raises UsageError before anything is written, and RunError when the
    run fails later; its record then says so.
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
    trainer = make_trainer(config, communicator, spec.num_threads, heartbeat, memory)
    with contextlib.closing(folder), contextlib.closing(trainer):
        checkpoint = prepare(spec, trainer)
        if communicator.is_main:
            context.report_folder(folder.root)
        if checkpoint is not None:
            clock.before = checkpoint["elapsed_seconds"]
            clock.update_seconds = checkpoint.get("update_seconds", 0.0)  # older ones do not say it
        trainer.exchange([])
        if communicator.is_main:
            print_settings(config, budget, trainer.facts(), folder.root)
            recorder = Recorder(config, folder, trainer, clock, checkpoint, context.root_process)
        try:
            interruption = run_until_done(spec, trainer, recorder, clock, budget, context)
            if recorder is not None and interruption is None:
                recorder.finish("completed", recorder.save("final"))
            elif recorder is not None:
                recorder.finish("interrupted", recorder.save_step())
        except BaseException:
            if recorder is not None:
                recorder.finish_failed()
            raise
    return 0 if interruption is None else interruption.exit_code


def prepare(spec: RunSpec, trainer: LearningProcess) -> dict[str, Any] | None:
    """Lock the run's folder. If the run is resumed, load and return its newest checkpoint."""
    config, folder, found = spec.config, spec.folder, None
    if spec.resume:
        if trainer.communicator.is_main:
            folder.take()
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


def run_until_done(
    spec: RunSpec,
    trainer: LearningProcess,
    recorder: Recorder | None,
    clock: Clock,
    budget: Budget,
    context: WorkerContext,
) -> Interrupted | None:
    """Make updates until the budget ends or the run is interrupted; return the interruption, if any."""
    try:
        signal_number = make_updates(spec, trainer, recorder, clock, budget, context)
        return Interrupted(signal_number) if signal_number else None
    except Interrupted as interruption:
        return interruption
    except PeerLost:  # when a run is stopped, others may leave first
        try:
            context.check()
        except Interrupted as interruption:
            return interruption
        raise


def make_updates(
    spec: RunSpec,
    trainer: LearningProcess,
    recorder: Recorder | None,
    clock: Clock,
    budget: Budget,
    context: WorkerContext,
) -> int:
    """Make updates until the budget ends or a stop signal arrives; return the signal's number, or 0.

    Every process follows the main process's clock.
    """
    if recorder is not None:
        recorder.monitor.start()
    config, due = spec.config, spec.config.logging
    profile_update = maybe_profile(spec.trace_folder if trainer.communicator.is_main else None, "learner")
    trainer.communicator.barrier()  # the time of the run starts when all processes are ready
    clock.start()
    elapsed, taken, signal_number = clock.before, -math.inf, 0  # the first boundary is kept
    while trainer.may_begin(budget, elapsed, clock.update_seconds):
        next_update = trainer.counters.updates + 1
        trainer.take_state = (
            elapsed + clock.update_seconds - taken >= due.snapshot_seconds
            or next_update % due.checkpoint_interval == 0
        )
        learning_rate = learning_rate_of(config, budget, trainer.counters.updates, elapsed)
        with profile_update():
            update = trainer.iterate(learning_rate)
        if recorder is not None:
            recorder.after_update(update, learning_rate)
        now, signal_number = trainer.communicator.boundary(clock.elapsed(), context.stop_requested())
        elapsed, clock.update_seconds = now, now - elapsed
        taken = elapsed if trainer.take_state else taken
        if signal_number:
            break
    trainer.take_state = True
    rest = trainer.finish()
    if rest is not None and recorder is not None:
        recorder.after_update(rest, learning_rate_of(config, budget, trainer.counters.updates, elapsed))
    trainer.exchange([])
    if recorder is not None:
        recorder.take_final_snapshot()
    return signal_number


def train_in_one_process(spec: RunSpec) -> int:
    """Train in this process, the sequential mode, and stop at a signal. Returns the exit code."""
    with StopSignal() as stop:
        context = WorkerContext(stop=stop)
        with failure_recorded(spec, context):
            return train(spec, context)
