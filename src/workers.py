"""The worker processes of a run on one machine: started, watched over, and all ended if one fails.

The process that starts them does nothing else than wait: it forwards signals, notices a worker that fails or
hangs, and sees to it that none is left behind. It never loads torch, which would cost it 150 MB and delay the
workers by two seconds; so it starts them with the spawn of Python's own multiprocessing, which torch's wraps.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from typing import Any

from src import cpu_utils
from src.config import Config
from src.errors import PeerLost, RunError, UsageError
from src.presence import ABORT, Presence
from src.record import write_failed_record
from src.run_folder import RunFolder
from src.settings import ParallelConfig
from src.shared_memory import map_shared, open_rollout
from src.signals import StopSignal

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0  # for workers to save and leave after one has failed
STOP_SECONDS = 60.0  # for workers to save and leave after a signal
POLL_SECONDS = 0.25


@dataclass
class Worker:
    """A worker as the process that started it sees it."""

    process: Any
    connection: Connection
    errors: list[tuple[str, str]] = field(default_factory=list)
    """(kind, message) of what it reported: usage, run, peer or fault."""
    recorded: bool = False
    """Whether it left its record of a run that ended."""
    exit_code: int = 0
    """What the run came to, as this worker sees it."""


# What a worker does, as a module with a function `work(job, link)`; loaded in the workers only.
DATA_PARALLEL, ASYNCHRONOUS = "src.parallel", "src.async_workers"


@dataclass(frozen=True)
class Link:
    """A worker's side of what ties it to the others."""

    rank: int
    presence: Presence
    connection: Connection
    root_process: int

    def check(self) -> None:
        self.presence.check(self.rank)

    def wait_for_others(self) -> contextlib.AbstractContextManager[None]:
        return self.presence.wait_for_others(self.rank)

    def share(self, value: Any = None) -> Any:
        """The first worker's value, in every worker."""
        if self.rank == 0:
            self.connection.send(("share", value))
            return value
        with self.wait_for_others():
            return self.connection.recv()

    def shared_memory(self, config: ParallelConfig, size: int) -> Any:
        """Memory that all workers share: the first one opens it, and it is passed on to the others."""
        if self.rank == 0:
            descriptor = open_rollout(config, size)
            self.connection.send(("memory", size))
            reduction.send_handle(self.connection, descriptor, self.root_process)
        else:
            with self.wait_for_others():
                descriptor = reduction.recv_handle(self.connection)
        return map_shared(descriptor)


@dataclass(frozen=True)
class Job:
    """What a worker is told."""

    module: str
    """What the worker does."""
    lock: Any
    """One for all workers."""
    config: Config
    folder: RunFolder
    num_threads: int
    resume: bool
    overwrite: bool
    root_process: int


def train_in_workers(
    config: Config, folder: RunFolder, num_threads: int, resume: bool, overwrite: bool
) -> int:
    """Train with `config.num_processes` workers until the budget ends or a signal comes.

    Returns the exit code. Raises UsageError or RunError with the words of the worker that failed.
    """
    count, cores = config.num_processes, cpu_utils.usable_cores()
    if count * num_threads > cores:
        logger.warning("%d workers of %d thread(s) share %d usable cores", count, num_threads, cores)
    context = multiprocessing.get_context("spawn")
    presence = Presence(context, count)
    module = ASYNCHRONOUS if config.algorithm == "a3c" else DATA_PARALLEL
    job = Job(module, context.Lock(), config, folder, num_threads, resume, overwrite, os.getpid())
    workers: list[Worker] = []
    with StopSignal() as stop:
        try:
            for rank in range(count):
                workers.append(start_worker(context, rank, job, presence))
            watch(workers, presence, stop, config.parallel.timeout_seconds)
        finally:
            end_all(workers)
    return conclude(config, folder, workers, stop)


def start_worker(context: Any, rank: int, job: Job, presence: Presence) -> Worker:
    """Start a worker with signals blocked, so that none ends it before it can ignore them."""
    ours, theirs = context.Pipe()
    process = context.Process(
        target=worker_main, args=(rank, job, presence, theirs), name=f"worker-{rank}", daemon=True
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, StopSignal.SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return Worker(process, ours)


def watch(workers: list[Worker], presence: Presence, stop: StopSignal, timeout_seconds: float) -> None:
    """Wait until all workers have ended, or until those that remain have been given their time to."""
    deadline = float("inf")
    while alive := [worker for worker in workers if worker.process.is_alive()]:
        connections = [worker.connection for worker in workers if not worker.connection.closed]
        wait([*connections, *(worker.process.sentinel for worker in alive)], timeout=POLL_SECONDS)
        for worker in workers:
            receive(worker, workers)
        for rank in presence.hanging(timeout_seconds):
            if not workers[rank].errors:
                text = f"made no progress for {timeout_seconds:g} s (parallel.timeout_seconds)"
                workers[rank].errors.append(("run", text))
        failed = any(worker.errors or has_died(worker) for worker in workers)
        if failed and presence.stop.value != ABORT:
            presence.stop.value = ABORT
            deadline = time.monotonic() + GRACE_SECONDS
        elif stop.received and not presence.stop.value:
            presence.stop.value = stop.received
            deadline = time.monotonic() + STOP_SECONDS
        if time.monotonic() > deadline:
            return
    for worker in workers:
        receive(worker, workers)


def has_died(worker: Worker) -> bool:
    return worker.process.exitcode not in (None, 0)


def receive(worker: Worker, workers: list[Worker]) -> None:
    """Take in what a worker has to say; pass the rollout's memory on from the first worker to the others."""
    try:
        while not worker.connection.closed and worker.connection.poll():
            kind, content = worker.connection.recv()
            if kind == "memory":
                descriptor = reduction.recv_handle(worker.connection)
                for other in workers[1:]:
                    reduction.send_handle(other.connection, descriptor, other.process.pid)
                os.close(descriptor)
            elif kind == "share":
                for other in workers[1:]:
                    other.connection.send(content)
            elif kind == "ended":
                worker.recorded, worker.exit_code = True, content
            else:
                worker.errors.append((kind, content))
    except (EOFError, OSError):  # it has gone; its exit code is what is left of it
        worker.connection.close()


def end_all(workers: list[Worker]) -> None:
    """Leave no process behind."""
    for worker in workers:
        if worker.process.is_alive():
            worker.process.kill()
        worker.process.join()
        with contextlib.suppress(OSError):
            worker.connection.close()


def conclude(config: Config, folder: RunFolder, workers: list[Worker], stop: StopSignal) -> int:
    """What the run came to: its exit code, or the error of the worker that failed first."""
    kind, message = first_error(workers)
    if kind == "usage":
        raise UsageError(message)
    if kind is not None:
        if not workers[0].recorded and folder.config_path.exists():
            write_failed_record(folder, config)
        raise RunError(message)
    if stop.received and not workers[0].recorded:
        return 128 + stop.received  # stopped before the run began
    return workers[0].exit_code


def first_error(workers: list[Worker]) -> tuple[str | None, str]:
    """The cause of a failure: what a worker said of itself comes before how one ended, and before lost
    peers."""
    for wanted in ("usage", "fault", "run"):
        for rank, worker in enumerate(workers):
            for kind, message in worker.errors:
                if kind == wanted:
                    return kind, message if kind == "usage" else f"worker {rank}: {message}"
    for rank, worker in enumerate(workers):
        code = worker.process.exitcode
        reported = any(kind == "peer" for kind, _ in worker.errors)
        if code and not reported and not (code == -signal.SIGKILL and worker.recorded):
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            return "run", f"worker {rank} {how}"
    for worker in workers:
        for kind, message in worker.errors:
            return kind, message
    return None, ""


def worker_main(rank: int, job: Job, presence: Presence, connection: Connection) -> None:
    """The body of a worker process."""
    for number in StopSignal.SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the process that started this one decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignal.SIGNALS)
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.basicConfig(format="%(levelname)s: %(message)s")
    code = 1
    try:
        if job.config.hardware.tune_allocator:
            cpu_utils.tune_allocator()
        link = Link(rank, presence, connection, job.root_process)
        connection.send(("ended", importlib.import_module(job.module).work(job, link)))
        code = 0
    except UsageError as error:
        connection.send(("usage", str(error)))
    except PeerLost as error:
        connection.send(("peer", str(error)))
    except RunError as error:
        connection.send(("run", str(error)))
    except BaseException as error:
        traceback.print_exc()
        connection.send(("fault", f"{type(error).__name__}: {error}"))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # peers may be gone: nothing that would wait for them is run


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, however that came about."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
