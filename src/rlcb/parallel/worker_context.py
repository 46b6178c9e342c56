"""How a worker process of this machine is told, stopped and watched by its supervisor, and what it shares."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlcb.config.settings import ParallelConfig
from rlcb.errors import EXIT_FAILED
from rlcb.parallel.calibration import Calibration
from rlcb.parallel.heartbeat import ABORT, Heartbeats
from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.world import World
from rlcb.processes.shared_memory import map_shared, open_rollout
from rlcb.training.worker_context import WorkerContext

POLL_SECONDS = 0.2  # between two looks whether the run still goes on, while waiting for a message


@dataclass(kw_only=True)
class SupervisedContext(WorkerContext):
    """The context of a child of a supervisor (supervisor.py), made in the child.

    `root_process` is the supervisor. Its children catch no signals, so `stop` is None.

    Messages to the supervisor are pairs (kind, content): `broadcast`, `memory`, `replaced` and `folder` from
    here, and from worker.py `ended` or the kind of an error.
    """

    connection: Connection
    """The pipe to the supervisor."""
    rank: int
    """This worker's number among those of its node, from 0. IMPALA's learners come before its actors."""
    generation: int
    """How many workers of this rank there were before; above 0 for an actor that replaces another."""
    heartbeats: Heartbeats
    """Signs of life of all workers of the node, and whether to stop, in shared memory."""
    lock: Any = None
    """A SharedLock of all workers, with which A3C guards its parameters; None in other runs."""
    queues: tuple[SlotQueue, SlotQueue] | None = None
    """IMPALA's queues: slots that actors may write, and slots that they have written."""
    world: World | None = None
    """This node's place in a distributed run; None on one machine."""
    calibration: Calibration | None = None
    """The measurement that chose the numbers of actors and learners, if this run made one."""

    # --- Stopped -----------------------------------------------------------------------------------------

    def check(self) -> None:
        # In a distributed run all ranks go on to an update boundary after a signal: see stop_requested.
        self.heartbeats.check(self.rank, heeds_signals=self.world is None)

    def stop_requested(self) -> int:
        return 0 if self.world is None else max(0, self.heartbeats.stop.value)

    def aborted(self) -> bool:
        return bool(self.heartbeats.stop.value == ABORT)

    def abort_cause(self) -> tuple[str, str] | None:
        return self.heartbeats.cause

    # --- Watched -----------------------------------------------------------------------------------------

    def beat(self) -> None:
        self.heartbeats.beat(self.rank)

    def wait_for_others(self) -> contextlib.AbstractContextManager[None]:
        return self.heartbeats.wait_for_others(self.rank)

    def report_hang(self, message: str) -> None:
        self.connection.send(("run", message))
        os._exit(EXIT_FAILED)

    def report_folder(self, root: Path) -> None:
        self.connection.send(("folder", root))

    def report_replaced(self, actors: int) -> None:
        """Tell the supervisor how many actors had been replaced before the run was resumed."""
        self.connection.send(("replaced", actors))

    # --- Shared ------------------------------------------------------------------------------------------

    def broadcast(self, value: Any = None, source: int = 0) -> Any:
        if self.rank == source:
            self.connection.send(("broadcast", value))
            return value
        self._await_message()
        return self.connection.recv()

    def shared_memory(self, config: ParallelConfig, size: int) -> Any:
        """Return a buffer of `size` bytes that all workers share. Rank 0 opens it, where `parallel.buffer`
        says, and the supervisor passes its descriptor on to the others."""
        if self.rank == 0:
            descriptor = open_rollout(config, size)
            self.connection.send(("memory", size))
            reduction.send_handle(self.connection, descriptor, self.root_process)
        else:
            self._await_message()
            descriptor = reduction.recv_handle(self.connection)
        return map_shared(descriptor)

    def wait_until_ready(self, ranks: range) -> None:
        """Wait until the workers `ranks` have called `check` once: they have made their environments. Raises
        PeerLost if a worker fails instead."""
        with self.wait_for_others():
            while not all(self.heartbeats.beats[rank] for rank in ranks):
                self.heartbeats.require_others()
                time.sleep(POLL_SECONDS / 10)

    def _await_message(self) -> None:
        """Wait for a message from the supervisor. Raises PeerLost if another worker fails instead."""
        with self.wait_for_others():
            while not self.connection.poll(POLL_SECONDS):
                self.heartbeats.require_others()
