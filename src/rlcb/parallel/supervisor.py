"""The worker processes of a run on one machine: started, watched over, and all ended if one fails.

The process that starts them does nothing else than wait: it forwards signals, notices a worker that fails or
hangs, and sees to it that none is left behind. It never loads torch, which would cost it 150 MB; the process
that the workers are forks of does (parallel/forkserver.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from dataclasses import dataclass, field, replace
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rlcb import cpu
from rlcb.config.config import Config
from rlcb.errors import Interrupted, RunError, UsageError
from rlcb.parallel.calibration import Calibration, calibrate
from rlcb.parallel.forkserver import worker_context
from rlcb.parallel.heartbeat import ABORT, Heartbeats
from rlcb.parallel.worker import Job, Link, worker_main
from rlcb.parallel.world import World, host_name
from rlcb.processes.child_process import start_child
from rlcb.processes.signals import StopSignal
from rlcb.processes.suspend_clock import SuspendClock
from rlcb.text import counted
from rlcb.training.results import write_failed_record
from rlcb.training.run_folder import RunFolder
from rlcb.training.run_spec import RunSpec

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0  # for workers to save and leave after one has failed, for actors once all is learned
CLUSTER_GRACE_SECONDS = 15.0  # ... and for all nodes to agree why
STOP_SECONDS = 60.0  # for workers to save and leave after a signal
REPORT_HANG_SECONDS = 5.0  # by which a rank of a distributed run may report_hang itself, before all nodes
POLL_SECONDS = 0.25


def train_in_workers(spec: RunSpec) -> int:
    """Train with the processes that the configuration names until the budget ends or a signal comes.

    Returns the exit code. Raises UsageError or RunError with the words of the worker that failed.
    """
    calibration, config = None, spec.config
    if config.has_actors and None in (config.impala.num_actors, config.impala.num_learners):
        print("Measuring how many actors and learners suit this machine: a few seconds", flush=True)
        with StopSignal() as stop:
            try:
                config, calibration = calibrate(config, stop.check)
            except Interrupted as interruption:
                return interruption.exit_code
    return train_on_node(replace(spec, config=config), worker_module(config), None, calibration)


def worker_module(config: Config) -> str:
    """The module whose `work` the workers of a parallel run call. Only they import it: it loads torch."""
    if config.has_actors:
        return "rlcb.parallel.impala_workers"
    return "rlcb.parallel.a3c" if config.traits.is_asynchronous else "rlcb.parallel.data_parallel"


def train_on_node(
    spec: RunSpec, module: str, world: World | None, calibration: Calibration | None = None
) -> int:
    """Train with this machine's worker processes, each of which runs the function `work` of `module`.

    `world` is this node's place in a distributed run. Returns the exit code. Raises UsageError or RunError
    with the message of the worker that failed.
    """
    config, num_threads = spec.config, spec.num_threads
    busy, cores = config.num_busy_processes, cpu.usable_cores()
    if busy * num_threads > cores:
        threads = counted(num_threads, "thread")
        logger.warning("%d workers of %s share %s", busy, threads, counted(cores, "usable core"))
    context = worker_context(config.env.id)
    queues = None
    if config.has_actors:
        queues = context.Pipe(duplex=False), context.Pipe(duplex=False)
    with StopSignal.blocked():  # it starts a process of its own that tidies up after it
        lock = context.Lock()
    job = Job(module, lock, queues, spec, os.getpid(), world, calibration)
    supervisor = Supervisor(context, job)
    with StopSignal(repeats=world is not None) as stop:
        try:
            supervisor.start()
            supervisor.watch(stop)
        finally:
            supervisor.end()
    return supervisor.conclude(stop)


class Supervisor:
    """The workers of a run."""

    def __init__(self, context: Any, job: Job) -> None:
        self.context = context
        self.job = job
        self.config = job.spec.config
        self.learners = job.spec.config.learners_per_node
        """Workers of this node that learn; those behind them are actors."""
        self.heartbeats = Heartbeats(context, job.spec.config.ranks_per_node)
        self.clock = SuspendClock()
        self.grace_seconds = GRACE_SECONDS if job.world is None else CLUSTER_GRACE_SECONDS
        self.workers: list[Worker] = []
        self.memory: int | None = None
        """The descriptor of the memory that the workers share, once there is one."""
        self.replaced = 0
        """Actors that took the place of one that died, before the run was resumed as well."""

    def start(self) -> None:
        for rank in range(self.config.ranks_per_node):
            self.workers.append(self._start_worker(rank))

    def _process_name(self, rank: int) -> str:
        world: World | None = self.job.world
        return self.config.process_name(self.config.rank_of(0 if world is None else world.node_rank, rank))

    def _name(self, rank: int) -> str:
        """What a worker is called where people read it; in a distributed run its host is named, and who
        learns is called by its rank in the world."""
        world: World | None = self.job.world
        if world is not None and not self._acts(rank):
            return world.rank_name(rank)
        return self._process_name(rank) + ("" if world is None else f" on {host_name()}")

    def _acts(self, rank: int) -> bool:
        """Whether a worker is one of IMPALA's actors."""
        return rank >= self.learners

    def _start_worker(self, rank: int) -> Worker:
        """Start the worker of `rank`; return its handle."""
        ours, theirs = self.context.Pipe()
        link = Link(
            rank,
            self.heartbeats.begin(rank),
            self.heartbeats,
            theirs,
            self.job.root_process,
            heeds_signals=self.job.world is None,
        )
        name = self._process_name(rank).replace(" ", "-")
        process = self.context.Process(target=worker_main, args=(self.job, link), name=name, daemon=True)
        start_child(process)
        theirs.close()
        return Worker(process, ours)

    def watch(self, stop: StopSignal) -> None:
        """Wait until all workers have ended, or until those that remain have been given their time to."""
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
        """Whether actors have nothing left to act for."""
        learners = self.workers[: self.learners]
        return self.config.has_actors and (
            learners[0].recorded or not any(worker.process.is_alive() for worker in learners)
        )

    def _abort(self, lost: list[int]) -> None:
        """Have all workers leave. Other nodes hear of an actor's failure from this node's learners; ranks of
        the world say themselves what they fail by, or are missed."""
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
        section, timeout = "parallel", self.config.parallel.timeout_seconds
        hanging = self.heartbeats.hanging(timeout)
        if self.job.world is not None:  # whose ranks report_hang themselves first, before all nodes
            section, timeout = "cluster", self.config.cluster.timeout_seconds
            late = self.heartbeats.hanging(timeout + REPORT_HANG_SECONDS)
            hanging = [rank for rank in self.heartbeats.hanging(timeout) if self._acts(rank) or rank in late]
        for rank in hanging:
            if not self.workers[rank].errors and not self.workers[rank].recorded:
                text = f"made no progress for {timeout:g} s ({section}.timeout_seconds)"
                self.workers[rank].errors.append(("run", text))

    def _has_failed(self, rank: int) -> bool:
        """Whether a worker's end is a failure of the run; an actor's is none once all is learned."""
        worker = self.workers[rank]
        if self._acts(rank) and self.workers[0].recorded:
            return False
        return bool(worker.errors) or worker.process.exitcode not in (None, 0)

    def _replace(self, rank: int) -> bool:
        """Start another actor in the place of one that failed, if that can be; returns whether it was."""
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
        worker.end()
        self.workers[rank] = self._start_worker(rank)
        self._pass_memory(self.workers[rank])
        return True

    def _receive(self, worker: Worker) -> None:
        """Take in what a worker has to say; pass on what is for the others."""
        try:
            while not worker.connection.closed and worker.connection.poll():
                kind, content = worker.connection.recv()
                if kind == "memory":
                    self.memory = reduction.recv_handle(worker.connection)
                    for other in self.workers[1:]:
                        self._pass_memory(other)
                elif kind == "broadcast":
                    for other in (each for each in self.workers if each is not worker):
                        with contextlib.suppress(OSError):  # it has gone, which is noticed elsewhere
                            other.connection.send(content)
                elif kind == "replaced":
                    self.replaced += content
                elif kind == "taken":
                    worker.folder = content
                    self.job.spec.folder.root = content  # an automatic name may have got a number
                elif kind == "ended":
                    worker.recorded, worker.exit_code = True, content
                else:
                    worker.errors.append((kind, content))
        except (EOFError, OSError):  # it has gone; its exit code is what is left of it
            worker.connection.close()

    def _pass_memory(self, worker: Worker) -> None:
        assert self.memory is not None
        with contextlib.suppress(OSError):  # it has gone, which is noticed elsewhere
            reduction.send_handle(worker.connection, self.memory, worker.process.pid)

    def end(self) -> None:
        """Leave no process behind."""
        for worker in self.workers:
            worker.end()
        if self.memory is not None:
            os.close(self.memory)

    def conclude(self, stop: StopSignal) -> int:
        """What the run came to: its exit code, or the error of the worker that failed first."""
        kind, message = self._first_error()
        if kind == "usage":
            raise UsageError(message)
        first = self.workers[0]
        if kind is not None:
            if first.folder is not None:
                write_failed_record(RunFolder(first.folder, self.config), self.config)
            raise RunError(message)
        if stop.received and not first.recorded:
            return 128 + stop.number  # stopped before the run began
        return first.exit_code

    def _first_error(self) -> tuple[str | None, str]:
        """The cause of a failure: what a worker said of itself, or how it ended, comes before lost peers."""
        failures = [
            (rank, failure)
            for rank, worker in enumerate(self.workers)
            if self._has_failed(rank) and (failure := worker.failure()) is not None
        ]
        if not failures:
            return None, ""
        rank, (kind, message) = min(failures, key=lambda each: KINDS.index(each[1][0]))
        text = describe(self._name(rank), kind, message)
        return kind, text if kind in ("usage", "peer") else text + self._replacements(rank)

    def _replacements(self, rank: int) -> str:
        if not self.replaced or not self._acts(rank):
            return ""
        return f"; {self.replaced} actors had been replaced before (impala.max_actor_restarts)"


# Failures, the causes before their consequences: wrong input, an error of the program, one of the run, a
# process that ended without a word, one that lost the others.
KINDS = ("usage", "fault", "run", "end", "peer")


@dataclass
class Worker:
    """A process, the connection to it, and what it said."""

    process: Any
    connection: Connection
    errors: list[tuple[str, str]] = field(default_factory=list)
    """(kind, message) of what it reported: usage, run, peer or fault."""
    folder: Path | None = None
    """The folder of the run, once it has taken it; only the first worker of a run does."""
    recorded: bool = False
    """Whether it came to the end of its work; the first worker has then left the record of the run."""
    exit_code: int = 0
    """What the run came to, as this worker sees it."""

    def failure(self) -> tuple[str, str] | None:
        """(kind, message) of the cause of its end, if it did not end well.

        What it said of itself comes before how it ended, and before lost peers.
        """
        found = dict(reversed(self.errors))
        code = self.process.exitcode
        if code and not found and not (code == -signal.SIGKILL and self.recorded):
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            found["end"] = f"was {how}" if code < 0 else how
        return next(((kind, found[kind]) for kind in KINDS if kind in found), None)

    def end(self) -> None:
        """Leave nothing of it behind."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        with contextlib.suppress(OSError):
            self.connection.close()


def describe(name: str, kind: str, message: str) -> str:
    """A failure of the worker `name` in one line."""
    if kind in ("usage", "peer"):  # which say themselves whom they are about
        return message
    return f"{name} {message}" if kind == "end" else f"{name}: {message}"
