"""Start the worker processes of a run on this machine, watch them, and end all of them if one fails.

The supervisor's process only waits: it passes signals on, notices a worker that fails or hangs
(heartbeat.py), replaces an actor that died, and leaves no process behind. It never loads torch, which would
cost 150 MB; the fork server that the workers come from does (forkserver.py).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rlcb import cpu
from rlcb.config.config import Config
from rlcb.config.derived import cores_without_work
from rlcb.errors import Interrupted, RunError, UsageError
from rlcb.parallel.calibration import Calibration, calibrate
from rlcb.parallel.forkserver import worker_context
from rlcb.parallel.heartbeat import ABORT, Heartbeats
from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.worker import worker_main
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.parallel.world import World, host_name
from rlcb.processes.child_process import end_child, start_child
from rlcb.processes.shared_memory import SharedLock
from rlcb.processes.signals import StopSignal
from rlcb.processes.suspend_clock import SuspendClock
from rlcb.text import counted
from rlcb.training.results import write_failed_record
from rlcb.training.run_folder import RunFolder
from rlcb.training.run_spec import RunSpec

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0  # for workers to save and leave after one has failed, for actors after the last update
CLUSTER_GRACE_SECONDS = 15.0  # the same in a distributed run, whose nodes have to agree on the reason
STOP_SECONDS = 60.0  # for workers to save and leave after a signal
POLL_SECONDS = 0.25


def train_in_workers(spec: RunSpec) -> int:
    """Train with the configured number of worker processes, the parallel mode; return the exit code.

    Measures first how many actors and learners IMPALA needs if that is not configured. Raises UsageError or
    RunError with the message of the worker that failed.
    """
    calibration, config = None, spec.config
    if config.has_actors and None in (config.impala.num_actors, config.impala.num_learners):
        print("Measuring how many actors and learners suit this machine: a few seconds", flush=True)
        with StopSignal(repeats=config.mode == "distributed") as stop:
            try:
                config, calibration = calibrate(config, stop.check)
            except Interrupted as interruption:
                return interruption.exit_code
    return train_on_node(replace(spec, config=config), worker_module(config), None, calibration)


def worker_module(config: Config) -> str:
    """Return the module whose `work` the workers of a parallel run call. Only they import it, with torch."""
    if config.has_actors:
        return "rlcb.parallel.impala_workers"
    return "rlcb.parallel.a3c" if config.traits.is_asynchronous else "rlcb.parallel.data_parallel"


def core_warning(config: Config, node_rank: int, num_threads: int, cores: int) -> str | None:
    """Return a warning if a node's workers are more than its cores, or if its environments make fewer."""
    busy, environments = config.busy_on(node_rank), config.env.num_envs
    usable = counted(cores, "usable core")
    if busy * num_threads > cores:
        return f"{busy} workers of {counted(num_threads, 'thread')} share {usable}"
    idle = cores_without_work(config, cores, num_threads)
    if idle:
        enough = math.ceil(environments / cores) * cores
        return (
            f"{idle} of {usable} have no work: {counted(environments, 'environment')} "
            f"divide among {counted(busy, 'worker')} at most; --num-envs {enough} makes {cores}"
        )
    return None


def train_on_node(
    spec: RunSpec, module: str, world: World | None, calibration: Calibration | None = None
) -> int:
    """Train with this machine's worker processes, each of which runs the function `work` of `module`.

    `world` is this node's place in a distributed run. Returns the exit code. Raises UsageError or RunError
    with the message of the worker that failed.
    """
    node = 0 if world is None else world.node_rank
    warning = core_warning(spec.config, node, spec.num_threads, cpu.usable_cores())
    if warning is not None:
        logger.warning(warning)
    workers, repeats = spec.config.ranks_on(node), spec.config.mode == "distributed"
    with spec.claimed_cores(workers) as pinning, StopSignal(repeats=repeats) as stop:
        spec = replace(spec, pinning=pinning)
        supervisor = Supervisor(worker_context(spec.config.env.id), module, spec, world, calibration)
        try:
            supervisor.start()
            supervisor.watch(stop)
        finally:
            supervisor.end()
    return supervisor.conclude(stop)


class Supervisor:
    """The workers of a run on this machine, as the process that starts them sees them."""

    def __init__(
        self,
        context: Any,
        module: str,
        spec: RunSpec,
        world: World | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        """`context` is the multiprocessing context of the workers; for the rest see `train_on_node`."""
        self.context = context
        self.module = module
        self.spec = spec
        self.config = spec.config
        self.world = world
        self.learners = self.config.learners_per_node
        """Number of workers that learn; the workers behind them are IMPALA's actors."""
        self.node_rank = 0 if world is None else world.node_rank
        self.heartbeats = Heartbeats(context, self.config.ranks_on(self.node_rank))
        queues = None
        if self.config.has_actors:
            queues = SlotQueue(context.Pipe(duplex=False)), SlotQueue(context.Pipe(duplex=False))
        self.lock = SharedLock() if self.config.traits.is_asynchronous else None
        self._make_context = partial(
            SupervisedContext,
            heartbeats=self.heartbeats,
            root_process=os.getpid(),
            lock=self.lock,
            queues=queues,
            world=world,
            calibration=calibration,
        )
        self.clock = SuspendClock()
        self.grace_seconds = GRACE_SECONDS if world is None else CLUSTER_GRACE_SECONDS
        self.workers: list[WorkerHandle] = []
        """By rank."""
        self.memory: int | None = None
        """The file descriptor of the memory that the workers share, once rank 0 has opened it."""
        self.replaced = 0
        """Actors that replaced one that died, including those before the run was resumed."""

    def start(self) -> None:
        for rank in range(self.config.ranks_on(self.node_rank)):
            self.workers.append(self._start_worker(rank))

    def _start_worker(self, rank: int) -> WorkerHandle:
        make_context = partial(self._make_context, rank=rank, generation=self.heartbeats.begin(rank))
        name = self._process_name(rank).replace(" ", "-")
        arguments = self.module, self.spec, make_context
        return WorkerHandle(*start_child(self.context, worker_main, *arguments, name=name))

    def _process_name(self, rank: int) -> str:
        """The name of a worker's process, numbered over all nodes: "worker 0", "learner 0", "actor 0"."""
        return self.config.process_name(self.config.rank_of(self.node_rank, rank))

    def _name(self, rank: int) -> str:
        """The name of a worker in messages. A distributed run adds the host, and names learners by rank."""
        if self.world is not None and not self._acts(rank):
            return self.world.rank_name(rank)
        return self._process_name(rank) + ("" if self.world is None else f" on {host_name()}")

    def _acts(self, rank: int) -> bool:
        """Whether a worker is one of IMPALA's actors."""
        return rank >= self.learners

    def watch(self, stop: StopSignal) -> None:
        """Watch the workers until all have ended, or until a failure's or a signal's deadline has passed."""
        deadline = float("inf")
        while alive := [worker for worker in self.workers if worker.process.is_alive()]:
            connections = [worker.connection for worker in self.workers if not worker.connection.closed]
            wait([*connections, *(worker.process.sentinel for worker in alive)], timeout=POLL_SECONDS)
            self.heartbeats.discount_suspension(self.clock.suspension())
            for worker in self.workers:
                self._receive(worker)
            self._report_hangs()
            failed = [rank for rank in range(len(self.workers)) if self._has_failed(rank)]
            lost = [rank for rank in failed if not self._replace(rank)]
            if lost and self.heartbeats.stop.value != ABORT:
                self._abort(lost)
                deadline = self.clock() + self.grace_seconds
            elif stop.number and not self.heartbeats.stop.value:
                self.heartbeats.stop.value = stop.number
                deadline = self.clock() + STOP_SECONDS
            elif self._learning_is_over():
                deadline = min(deadline, self.clock() + GRACE_SECONDS)
            if self.clock() > deadline:
                return
        for worker in self.workers:
            self._receive(worker)

    def _learning_is_over(self) -> bool:
        """Whether no learner needs the actors any more."""
        learners = self.workers[: self.learners]
        return self.config.has_actors and (
            learners[0].ended or not any(worker.process.is_alive() for worker in learners)
        )

    def _abort(self, lost: list[int]) -> None:
        """Tell all workers to leave because the workers `lost` failed.

        In a distributed run this node's learners tell the other nodes why an actor failed. Learners report
        their own failures, or other nodes notice their silence.
        """
        actors = [rank for rank in lost if self._acts(rank)]
        for rank in actors:
            self.workers[rank].process.kill()  # it may hang
        for rank, failure in [(rank, self.workers[rank].failure()) for rank in actors]:
            if failure is not None and failure[0] != "peer":
                kind = "run" if failure[0] == "end" else failure[0]
                self.heartbeats.abort(kind, describe(self._name(rank), *failure) + self._replacements(rank))
                return
        self.heartbeats.abort()

    def _report_hangs(self) -> None:
        """Note an error of every worker that hangs, as heartbeat.py defines it."""
        section, timeout, self_reporting = "parallel", self.config.parallel.timeout_seconds, range(0)
        if self.config.mode == "distributed":
            section, timeout = "cluster", self.config.cluster.timeout_seconds
        if self.world is not None:
            self_reporting = range(self.learners)
        for rank in self.heartbeats.hanging(timeout, self_reporting):
            if not self.workers[rank].errors and not self.workers[rank].ended:
                text = f"made no progress for {timeout:g} s ({section}.timeout_seconds)"
                self.workers[rank].errors.append(("run", text))

    def _has_failed(self, rank: int) -> bool:
        """Whether a worker failed. After the last update the end of an actor is no failure."""
        worker = self.workers[rank]
        if self._acts(rank) and self.workers[0].ended:
            return False
        return bool(worker.errors) or worker.process.exitcode not in (None, 0)

    def _replace(self, rank: int) -> bool:
        """Replace an actor that failed by a new one; return whether that was possible."""
        worker, limit = self.workers[rank], self.config.impala.max_actor_restarts
        failure = worker.failure()
        possible = (
            self._acts(rank)
            and self.memory is not None
            and not self.heartbeats.stop.value
            and self.replaced < limit
        )
        if not possible or failure is None or failure[0] == "usage":
            return False
        self.replaced += 1
        name = self._name(rank)
        logger.warning(
            "%s; replaced by a new one (%d of %d: impala.max_actor_restarts)",
            *(describe(name, *failure), self.replaced, limit),
        )
        end_child(worker.process, worker.connection)
        self.workers[rank] = self._start_worker(rank)
        self._pass_memory(self.workers[rank])
        return True

    def _receive(self, worker: WorkerHandle) -> None:
        """Read a worker's messages (SupervisedContext), and pass on those that are for other workers."""
        try:
            while not worker.connection.closed and worker.connection.poll():
                kind, content = worker.connection.recv()
                if kind == "memory":
                    self.memory = reduction.recv_handle(worker.connection)
                    for other in self.workers[1:]:
                        self._pass_memory(other)
                elif kind == "broadcast":
                    for other in (each for each in self.workers if each is not worker):
                        with contextlib.suppress(OSError):  # it has ended, which `watch` notices
                            other.connection.send(content)
                elif kind == "replaced":
                    self.replaced += content
                elif kind == "folder":
                    worker.folder = content
                    self.spec.folder.root = content  # an automatic name may have got a number
                elif kind == "ended":
                    worker.ended, worker.exit_code = True, content
                else:
                    worker.errors.append((kind, content))
        except (EOFError, OSError):  # it has ended; its exit code says how
            worker.connection.close()

    def _pass_memory(self, worker: WorkerHandle) -> None:
        assert self.memory is not None
        with contextlib.suppress(OSError):  # it has ended, which `watch` notices
            reduction.send_handle(worker.connection, self.memory, worker.process.pid)

    def end(self) -> None:
        """Kill the workers that are left, and release the shared memory."""
        for worker in self.workers:
            worker.left_over = worker.process.is_alive()
            end_child(worker.process, worker.connection)
        if self.memory is not None:
            os.close(self.memory)
        if self.lock is not None:
            self.lock.close()

    def conclude(self, stop: StopSignal) -> int:
        """Return the exit code of the run. Raises UsageError or RunError if a worker failed."""
        kind, message = self._first_error()
        if kind == "usage":
            raise UsageError(message)
        first = self.workers[0]
        if kind is not None:
            if first.folder is not None:
                write_failed_record(RunFolder(first.folder, self.config), self.config)
            raise RunError(message)
        if stop.received and not first.ended:
            return 128 + stop.number  # stopped before the run began
        return first.exit_code

    def _first_error(self) -> tuple[str | None, str]:
        """Return the kind and message of the failure that caused the others, by the order of KINDS; None and
        "" without one."""
        failures = [
            (rank, failure)
            for rank, worker in enumerate(self.workers)
            if self._has_failed(rank) and (failure := worker.failure()) is not None
        ]
        if not failures:
            return None, ""
        rank, (kind, message) = min(
            failures, key=lambda each: (KINDS.index(each[1][0]), self.workers[each[0]].left_over)
        )
        text = describe(self._name(rank), kind, message)
        return kind, text if kind in ("usage", "peer") else text + self._replacements(rank)

    def _replacements(self, rank: int) -> str:
        """Say in an actor's error how many actors had been replaced before."""
        if not self.replaced or not self._acts(rank):
            return ""
        return f"; {self.replaced} actors had been replaced before (impala.max_actor_restarts)"


# Kinds of failures, causes before consequences: wrong input, an error of the program, an error of the run, a
# process that ended without a report, a process that lost the others.
KINDS = ("usage", "fault", "run", "end", "peer")


@dataclass
class WorkerHandle:
    """A worker as its supervisor sees it: the process, the connection to it, and what it reported."""

    process: Any
    connection: Connection
    errors: list[tuple[str, str]] = field(default_factory=list)
    """The (kind, message) of each error that it reported, or that the supervisor noted of it."""
    folder: Path | None = None
    """The folder of the run, once the run has taken it; only rank 0 reports it."""
    ended: bool = False
    """Whether it reported the end of its work; rank 0 has then written the record of the run."""
    exit_code: int = 0
    """The run's exit code as this worker reported it."""
    left_over: bool = False
    """Whether it was still there at the end and `Supervisor.end` killed it: not the cause of a failure."""

    def failure(self) -> tuple[str, str] | None:
        """Return the (kind, message) of the cause of its failure; None if it did not fail.

        Errors that it reported come before the exit code of the process, and lost peers come last.
        """
        found = dict(reversed(self.errors))
        code = self.process.exitcode
        if code and not found and not (code == -signal.SIGKILL and self.ended):
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            found["end"] = f"was {how}" if code < 0 else how
        return next(((kind, found[kind]) for kind in KINDS if kind in found), None)


def describe(name: str, kind: str, message: str) -> str:
    """Describe a failure of the worker `name` in one line."""
    if kind in ("usage", "peer"):  # these messages name a process where that matters
        return message
    return f"{name} {message}" if kind == "end" else f"{name}: {message}"
