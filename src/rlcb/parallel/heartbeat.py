"""Heartbeats: how a worker that hangs is detected, and how workers hear that they must stop.

Every worker notes in shared memory when it last made progress (`check`, between environment steps and between
minibatches) and whether it waits for others (`wait_for_others`). The supervisor looks several times a second:
a worker that does not wait and has made no progress for `parallel.timeout_seconds` hangs (`hanging`). The
supervisor then tells all workers to leave (`abort`), which they notice in `check`, and ends the run with the
error "made no progress".

In a distributed run the time-out is `cluster.timeout_seconds`, and each rank also has a watchdog thread of
its own, which tells the ranks of other nodes (cluster/watchdog.py). The supervisor gives it
REPORT_HANG_SECONDS to do so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from rlcb.errors import Interrupted, PeerLost

ABORT = -1  # in the place of a signal's number: another worker failed
CAUSE_BYTES = 2000
START_SECONDS = 120.0  # for a worker to load its libraries and make its environments
REPORT_HANG_SECONDS = 5.0  # for a rank of a distributed run to report its own hang to all nodes


class Heartbeats:
    """The signs of life of a node's workers, and their stop flag, in shared memory."""

    def __init__(self, context: Any, num_workers: int) -> None:
        """`context` is the multiprocessing context of the workers."""
        self.started = context.RawArray("d", num_workers)
        """When each worker was started, in seconds of time.monotonic; 0 before."""
        self.generations = context.RawArray("i", num_workers)
        """How many workers of each rank have been started."""
        self.beats = context.RawArray("d", num_workers)
        """When each worker last made progress; 0 until its first `check`."""
        self.waiting = context.RawArray("b", num_workers)
        """Whether each worker waits for others."""
        self.stop = context.RawValue("i", 0)
        """The number of the signal that stops the run, or ABORT; 0 while it goes on."""
        self._cause = context.RawArray("c", CAUSE_BYTES)

    # --- Called by workers -------------------------------------------------------------------------------

    def beat(self, rank: int) -> None:
        """Note that a worker makes progress."""
        self.beats[rank] = time.monotonic()

    def check(self, rank: int, heeds_signals: bool = True) -> None:
        """Note progress; raise PeerLost if another worker failed, and Interrupted after a signal if
        `heeds_signals`."""
        self.beat(rank)
        self.require_others()
        if self.stop.value and heeds_signals:
            raise Interrupted(self.stop.value)

    def require_others(self) -> None:
        """Raise PeerLost if another worker failed."""
        if self.stop.value == ABORT:
            raise PeerLost("another worker failed")

    @contextlib.contextmanager
    def wait_for_others(self, rank: int) -> Iterator[None]:
        """Context manager around every wait of a worker for the others: a worker that waits does not hang."""
        self.waiting[rank] = 1
        try:
            yield
        finally:
            if self.beats[rank]:  # a wait before the first step is part of starting
                self.beat(rank)
            self.waiting[rank] = 0

    @property
    def cause(self) -> tuple[str, str] | None:
        """The kind and message that `abort` was given; None without one."""
        kind, _, text = bytes(self._cause.value).decode(errors="ignore").partition(" ")
        return (kind, text) if text else None

    # --- Called by the supervisor ------------------------------------------------------------------------

    def begin(self, rank: int) -> int:
        """Note that a worker is about to start; return its generation: how many of its rank came before."""
        self.beats[rank], self.waiting[rank], self.started[rank] = 0.0, 0, time.monotonic()
        self.generations[rank] += 1
        return int(self.generations[rank]) - 1

    def abort(self, kind: str = "", text: str = "") -> None:
        """Tell all workers to leave. Ranks of a distributed run pass `kind` and `text` on to other nodes."""
        if text:
            self._cause.value = f"{kind} {text}".encode()[: CAUSE_BYTES - 1]
        self.stop.value = ABORT

    def discount_suspension(self, seconds: float) -> None:
        """Extend all deadlines by `seconds`, after a suspension of the machine that has just ended."""
        now = time.monotonic()
        for moments in (self.beats, self.started) if seconds else ():
            for rank, moment in enumerate(moments):
                if moment:
                    moments[rank] = min(now, moment + seconds)

    def hanging(self, timeout_seconds: float, self_reporting: range = range(0)) -> list[int]:
        """Return the ranks that neither wait nor made progress for `timeout_seconds`.

        A worker that is still starting has at least START_SECONDS; the ranks `self_reporting` have
        REPORT_HANG_SECONDS more.
        """
        waiting = list(self.waiting)  # before the beats: a worker that stops waiting writes its beat first
        beats, now = list(self.beats), time.monotonic()
        found = []
        for rank, (beat, started) in enumerate(zip(beats, self.started, strict=True)):
            patience = timeout_seconds + (REPORT_HANG_SECONDS if rank in self_reporting else 0.0)
            patience = patience if beat else max(patience, START_SECONDS)
            since = beat or started
            if since and not waiting[rank] and now - since > patience:
                found.append(rank)
        return found
