"""What the processes of a run see of each other through shared memory: who is alive, who waits, when to
stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from rlcb.errors import Interrupted, PeerLost

ABORT = -1  # in the place of a signal's number: another worker failed
CAUSE_BYTES = 2000
START_SECONDS = 120.0  # for a worker to load its libraries and make its environments


class Heartbeats:
    """Shared by all processes: when each worker last made progress, whether it waits, and whether to stop."""

    def __init__(self, context: Any, num_workers: int) -> None:
        self.started = context.RawArray("d", num_workers)
        self.generations = context.RawArray("i", num_workers)
        """How many workers of each rank have been started."""
        self.beats = context.RawArray("d", num_workers)  # 0 until a worker has started
        self.waiting = context.RawArray("b", num_workers)
        self.stop = context.RawValue("i", 0)
        self._cause = context.RawArray("c", CAUSE_BYTES)

    def begin(self, rank: int) -> int:
        """Called before a worker is started; returns how many of its rank there were before."""
        self.beats[rank], self.waiting[rank], self.started[rank] = 0.0, 0, time.monotonic()
        self.generations[rank] += 1
        return int(self.generations[rank]) - 1

    def abort(self, kind: str = "", text: str = "") -> None:
        """Have all workers leave; `kind` and `text` say why, for those who tell it to other nodes."""
        if text:
            self._cause.value = f"{kind} {text}".encode()[: CAUSE_BYTES - 1]
        self.stop.value = ABORT

    @property
    def cause(self) -> tuple[str, str] | None:
        """What `abort` was told."""
        kind, _, text = bytes(self._cause.value).decode(errors="ignore").partition(" ")
        return (kind, text) if text else None

    def check(self, rank: int, heeds_signals: bool = True) -> None:
        """Called by a worker between two pieces of work. Raises Interrupted or PeerLost if the run is to
        end."""
        self.beats[rank] = time.monotonic()
        self.require_others()
        if self.stop.value and heeds_signals:
            raise Interrupted(self.stop.value)

    def require_others(self) -> None:
        """Raise PeerLost if another worker failed."""
        if self.stop.value == ABORT:
            raise PeerLost("another worker failed")

    @contextlib.contextmanager
    def wait_for_others(self, rank: int) -> Iterator[None]:
        """Around every wait of a worker for the others: who waits does not hang."""
        self.waiting[rank] = 1
        try:
            yield
        finally:
            if self.beats[rank]:  # what is waited for before the first step still belongs to starting
                self.beats[rank] = time.monotonic()
            self.waiting[rank] = 0

    def discount_suspension(self, seconds: float) -> None:
        """Do not hold a time against the workers in which none could run. It has ended just now."""
        now = time.monotonic()
        for moments in (self.beats, self.started) if seconds else ():
            for rank, moment in enumerate(moments):
                if moment:
                    moments[rank] = min(now, moment + seconds)

    def hanging(self, timeout_seconds: float) -> list[int]:
        """Workers that should be making progress and are not. Starting one may take longer than a step."""
        waiting = list(self.waiting)  # before the beats: who stops waiting writes its beat first
        now = time.monotonic()
        since = [beat or start for beat, start in zip(self.beats, self.started, strict=True)]
        patience = [timeout_seconds if beat else max(timeout_seconds, START_SECONDS) for beat in self.beats]
        return [
            rank
            for rank, waits in enumerate(waiting)
            if since[rank] and not waits and now - since[rank] > patience[rank]
        ]
