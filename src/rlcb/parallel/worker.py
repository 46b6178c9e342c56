"""A worker process: what it is told, what ties it to the others, and how it ends.

The process that starts and watches them is described in parallel/supervisor.py.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rlcb import cpu
from rlcb.config.settings import ParallelConfig
from rlcb.errors import Interrupted, PeerLost, RunError, UsageError
from rlcb.parallel.calibration import Calibration
from rlcb.parallel.heartbeat import Heartbeats
from rlcb.processes.output import forgive_output
from rlcb.processes.shared_memory import map_shared, open_rollout
from rlcb.processes.signals import StopSignal
from rlcb.training.run_spec import RunSpec

POLL_SECONDS = 0.2  # how often who waits for a message looks whether the run goes on


@dataclass(frozen=True)
class Job:
    """What a worker is told."""

    module: str
    """The module whose function `work(job, link)` the worker runs; imported in the worker only."""
    lock: Any
    """One for all workers."""
    queues: Any
    """Ends of pipes between all workers, for modules that need them; else None."""
    spec: RunSpec
    root_process: int
    world: Any = None
    """The node's place in a distributed run (rlcb.parallel.world.World)."""
    calibration: Calibration | None = None
    """What the numbers of actors and learners come from, if they were not given."""


@dataclass(frozen=True)
class Link:
    """A worker's side of what ties it to the others."""

    rank: int
    generation: int
    """How many workers of this rank there were before."""
    heartbeats: Heartbeats
    connection: Connection
    root_process: int
    heeds_signals: bool = True
    """Whether a signal ends this worker; in a distributed run all ranks come to an update boundary first."""

    def check(self) -> None:
        self.heartbeats.check(self.rank, self.heeds_signals)

    def wait_for_others(self) -> contextlib.AbstractContextManager[None]:
        return self.heartbeats.wait_for_others(self.rank)

    def broadcast(self, value: Any = None, source: int = 0) -> Any:
        """The value of worker `source`, in every worker. All share the same values in the same order."""
        if self.rank == source:
            self.connection.send(("broadcast", value))
            return value
        self._await_message()
        return self.connection.recv()

    def await_begun(self, ranks: range) -> None:
        """Wait until each of these workers has said by its first `check` that it could begin. Raises PeerLost
        if one fails instead."""
        with self.wait_for_others():
            while not all(self.heartbeats.beats[rank] for rank in ranks):
                self.heartbeats.require_others()
                time.sleep(POLL_SECONDS / 10)

    def shared_memory(self, config: ParallelConfig, size: int) -> Any:
        """Memory that all workers share: the first one opens it, and it is passed on to the others."""
        if self.rank == 0:
            descriptor = open_rollout(config, size)
            self.connection.send(("memory", size))
            reduction.send_handle(self.connection, descriptor, self.root_process)
        else:
            self._await_message()
            descriptor = reduction.recv_handle(self.connection)
        return map_shared(descriptor)

    def has_replaced(self, actors: int) -> None:
        """Say how many actors had been replaced before the run was resumed."""
        self.connection.send(("replaced", actors))

    def has_taken(self, root: Path) -> None:
        """Say which folder the run has taken."""
        self.connection.send(("taken", root))

    def _await_message(self) -> None:
        """Wait until the process that started this one passes something on. Raises PeerLost if another
        worker fails instead."""
        with self.wait_for_others():
            while not self.connection.poll(POLL_SECONDS):
                self.heartbeats.require_others()


def worker_main(job: Job, link: Link) -> None:
    """The body of a worker process."""
    StopSignal.ignore()
    threading.Thread(target=end_with_parent, daemon=True).start()
    forgive_output()
    logging.basicConfig(format="%(levelname)s: %(message)s")
    code, connection = 1, link.connection
    try:
        if job.spec.config.hardware.tune_allocator:
            cpu.tune_allocator()
        connection.send(("ended", importlib.import_module(job.module).work(job, link)))
        code = 0
    except Interrupted:  # before the run began: there is nothing to record
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
