"""The watchdog of a distributed run: when one rank leaves or falls silent, all end with the same reason.

A background thread of every rank writes a heartbeat to the store and reads those of others. A rank that
leaves early writes why to the store. Rank 0 decides on one shutdown reason, from these entries and from the
ranks that have fallen silent, and every rank raises it. Silence is measured by the clock, so it also shows a
cut cable.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rlcb.errors import Interrupted, PeerLost, UsageError, first_line
from rlcb.parallel.heartbeat import START_SECONDS
from rlcb.parallel.world import World
from rlcb.processes.suspend_clock import SuspendClock
from rlcb.training.worker_context import WorkerContext

INTERVAL_SECONDS = 0.5
"""Between two heartbeats, in a small world."""
SILENT_SECONDS = 3.0
"""A rank without a heartbeat for so long is gone, if another rank has left."""
DECIDE_SECONDS = 5.0
"""How long rank 0 waits for all ranks to say why they leave, before it decides without them."""
STOP_SECONDS = 15.0
"""How long a run may take to reach an update boundary after a signal; schedulers kill after 30."""
FAILURES = ("usage", "fault", "run")
"""Kinds of failures. The first of them that any rank reports is the shutdown reason."""


def run_bounded(function: Callable[[], Any], seconds: float) -> Any:
    """Return what a function returns or the exception that it raises; a TimeoutError after `seconds`."""
    result: list[Any] = [TimeoutError(f"no answer for {seconds:g} s")]

    def call() -> None:
        try:
            result[0] = function()
        except Exception as error:
            result[0] = error

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return result[0]


class Watchdog:
    """Watches the other ranks for one rank."""

    def __init__(
        self,
        connect: Callable[[], Any],
        world: World,
        names: list[str],
        timeout_seconds: float,
        context: WorkerContext,
    ) -> None:
        """Start the background thread.

        `connect` returns a new connection to the store. `names` has the name of every rank, all of which have
        joined. `context` is this rank's context on its node.
        """
        self.rank, self.size = world.rank, world.size
        self.names = names
        self.timeout_seconds = timeout_seconds
        spread = self.size / 1000  # one store answers all ranks, which takes longer in a large world
        self.interval_seconds = INTERVAL_SECONDS + spread
        self.silent_seconds = SILENT_SECONDS + 2 * spread
        self.decide_seconds = DECIDE_SECONDS + 2 * spread
        self.context = context
        self.now = SuspendClock(2 * self.silent_seconds)
        self.store = connect()
        """The connection of the background thread. A connection serves one request at a time."""
        self.main_store = connect()
        """The connection of the main thread."""
        self.alarm: str | None = None
        """Why this rank must leave: another rank has left or is silent."""
        self.progress: float | None = None
        """When the main thread last made progress; None before its first work."""
        self.waits = 0
        self._reason: dict[str, Any] | None = None
        self._stop_since: float | None = None
        self._started = self.last_contact = self.now()
        self._watched = range(self.size) if self.rank == 0 else range(1)
        self._seen = dict.fromkeys(self._watched, (b"", self._started))
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self.names[self.rank]

    def check(self) -> None:
        """Note progress; raise the shutdown reason if the run must end. Called between two pieces of work and
        while this rank waits for others."""
        now = self.now()
        if not self.waits:
            self.progress = now
        if self._reason is not None:
            raise self._as_error(self._reason)
        if self.context.aborted():
            cause = self.context.abort_cause()
            if cause is not None:
                self.fail(*cause)
            raise self.agree(PeerLost("another process of this node failed"))
        if now - self.last_contact > self.timeout_seconds:
            self.alarm = (
                f"{self.names[0]}: no answer for {self.timeout_seconds:g} s (cluster.timeout_seconds)"
            )
        if self.alarm is not None:
            raise self.agree(PeerLost(self.alarm))
        signal_number = self.context.stop_requested()
        if signal_number:
            self._stop_since = self._stop_since or now
            if now - self._stop_since > STOP_SECONDS:
                raise self.agree(Interrupted(signal_number))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Context manager around every wait for other ranks: a rank that waits does not hang."""
        self.waits += 1
        try:
            with self.context.wait_for_others():
                yield
        finally:
            if self.progress is not None:
                self.progress = self.now()
            self.waits -= 1  # after the progress: the background thread must not see old progress and no wait

    # --- the background thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        count = 0
        while not self._closed.wait(self.interval_seconds):
            try:
                count += 1
                self.store.set(f"beat/{self.rank}", str(count))
                leaving = self.store.add("leaving", 0)
                beats = self.store.multi_get([f"beat/{rank}" for rank in self._watched])
            except RuntimeError as error:
                if not self._closed.is_set():
                    self.alarm = f"{self.names[0]} is gone: {first_line(error)}"
                return
            self._note_beats(leaving, beats)
            self._report_own_hang()

    def _note_beats(self, leaving: int, beats: list[bytes]) -> None:
        """Note which ranks are alive; set the alarm if one has left or been silent for too long."""
        self.last_contact = now = self.now()
        for rank, beat in zip(self._watched, beats, strict=True):
            if beat != self._seen[rank][0]:
                self._seen[rank] = (beat, now)
            elif now - self._seen[rank][1] > self.timeout_seconds and rank != self.rank:
                self.alarm = f"{self.names[rank]} {self._silence()}"
        if leaving and self.alarm is None:
            self.alarm = "another rank has left"

    def _silence(self) -> str:
        return f"has been silent for {self.timeout_seconds:g} s (cluster.timeout_seconds)"

    def _report_own_hang(self) -> None:
        """End this process if its main thread neither makes progress nor waits for others."""
        patience = self.timeout_seconds
        if self.progress is None:
            patience = max(patience, START_SECONDS)
        waits = self.waits  # read before the progress, which `waiting` sets first
        hangs = self.now() - (self.progress or self._started) > patience
        if hangs and not waits and not self._closed.is_set() and self._reason is None:
            text = f"made no progress for {patience:g} s (cluster.timeout_seconds)"
            with contextlib.suppress(RuntimeError):  # the others notice the silence
                self._post(self.store, "run", f"{self.name}: {text}")
                time.sleep(self.silent_seconds)  # the store may end with this process: let the others read
            self.context.report_hang(text)

    # --- leaving -----------------------------------------------------------------------------------------

    def agree(self, leaving: Exception) -> Exception:
        """Tell the others why this rank leaves; return the exception to raise, the same on all ranks."""
        if self._reason is None:
            # A store that has not answered for a while is unlikely to answer now.
            cut_off = self.now() - self.last_contact > self.silent_seconds
            with self.waiting():
                reason = run_bounded(
                    lambda: self._agree(leaving), 1.0 if cut_off else 2 * self.decide_seconds
                )
            if isinstance(reason, Exception):
                cause = self.alarm or f"{self.names[0]} is gone: {first_line(reason)}"
                reason = {"kind": "lost", "text": f"{self.name} lost the others: {cause}"}
                if isinstance(leaving, Interrupted):
                    reason = {"kind": "stop", "signal": leaving.signal_number}
            self._reason = reason
        return self._as_error(self._reason)

    def fail(self, kind: str, text: str) -> None:
        """Tell the others that this rank fails; `kind` is one of FAILURES."""
        if self._reason is None:
            self._reason = {"kind": kind, "text": text}
            run_bounded(lambda: self._post(self.main_store, kind, text), self.decide_seconds)

    def _post(self, store: Any, kind: str, text: str, signal_number: int = 0) -> None:
        """Write to the store why this rank leaves."""
        said = {"kind": kind, "text": text, "signal": signal_number}
        store.set(f"left/{self.rank}", json.dumps(said))
        if self.rank == 0 and kind in FAILURES:
            store.set("reason", json.dumps(said))
        store.add("leaving", 1)

    def _agree(self, leaving: Exception) -> dict[str, Any]:
        """Write why this rank leaves, and return the shutdown reason of all ranks once rank 0 has decided."""
        number = leaving.signal_number if isinstance(leaving, Interrupted) else self.context.stop_requested()
        kind = "stop" if number else "lost"
        self._post(self.main_store, kind, f"{self.name} lost the others: {leaving}", number)
        deadline = self.now() + self.decide_seconds
        reason: dict[str, Any] | None = None
        while reason is None:
            late = self.now() > deadline
            reason = self._decide(late) if self.rank == 0 else self._read_reason(late)
            time.sleep(0.1)
        if self.rank == 0:
            self.main_store.set("reason", json.dumps(reason))
        self.main_store.add("informed", 1)
        return reason

    def _read_reason(self, late: bool) -> dict[str, Any] | None:
        """Return the decision of rank 0; None without one. If it is late, decide without rank 0."""
        if self.main_store.check(["reason"]):
            reason: dict[str, Any] = json.loads(self.main_store.get("reason"))
            return reason
        return self._decide(late=True) if late else None

    def _decide(self, late: bool) -> dict[str, Any] | None:
        """Return the shutdown reason from what the ranks wrote; None while some may still write."""
        texts = self.main_store.multi_get([f"left/{rank}" for rank in range(self.size)])
        said = {rank: json.loads(text) for rank, text in enumerate(texts) if text}
        for wanted in FAILURES:
            for each in said.values():
                if each["kind"] == wanted:
                    return dict(each)
        now = self.now()
        silent = [
            rank
            for rank in self._watched
            if rank not in said and rank != self.rank and now - self._seen[rank][1] > self.silent_seconds
        ]
        if not late and len(said) + len(silent) < self.size:
            return None
        if silent:
            names = ", ".join(self.names[rank] for rank in silent[:4])
            more = f" and {len(silent) - 4} more" if len(silent) > 4 else ""
            return {"kind": "lost", "text": f"{names}{more} is gone: killed, or cut off from the network"}
        stops = [each for each in said.values() if each["kind"] == "stop"]
        return dict(stops[0] if stops else said[self.rank])

    def _as_error(self, reason: dict[str, Any]) -> Exception:
        if reason["kind"] == "stop":
            return Interrupted(reason["signal"])
        # The text names the rank that failed; to this rank it is a lost peer.
        return (UsageError if reason["kind"] == "usage" else PeerLost)(reason["text"])

    def close(self) -> None:
        """Stop watching. Rank 0 may hold the store, so it waits until the others have read the reason."""
        self._closed.set()
        if self.rank != 0 or self._reason is None:
            return
        deadline = self.now() + self.silent_seconds
        while self.now() < deadline:
            informed = run_bounded(lambda: self.main_store.add("informed", 0), 1.0)
            if not isinstance(informed, int) or informed >= self.size:
                return
            time.sleep(0.1)
