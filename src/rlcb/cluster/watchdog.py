"""The ranks of a distributed run watch each other, and when one leaves all learn why, in the same words.

Every rank's background thread tells the store that the rank is alive, and looks whether another leaves or is
silent. A rank that leaves early says so there; rank 0 judges from what all have said and from who has fallen
silent, and every rank ends with that verdict. Silence is noticed by the clock, so a cut cable counts as well.
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

INTERVAL_SECONDS = 0.5  # between two signs of life in a small world
SILENT_SECONDS = 3.0  # without a sign of life, once some rank has left
JUDGE_SECONDS = 5.0  # for all to say why they leave, or to be silent for so long
STOP_SECONDS = 15.0  # to reach an update boundary after a signal; schedulers kill after 30
FAILURES = ("usage", "fault", "run")  # in the order in which they explain an end


def run_bounded(function: Callable[[], Any], seconds: float) -> Any:
    """What a function returns, or the exception that it raises or a TimeoutError, within `seconds`."""
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


class Watch:
    """One rank's view of the others."""

    def __init__(
        self,
        connect: Callable[[], Any],
        world: World,
        names: list[str],
        timeout_seconds: float,
        context: WorkerContext,
    ) -> None:
        """Start the background thread. `connect` returns a new connection to the store, in which all ranks of
        `names` have announced themselves. `context` is that of this rank on its own node."""
        self.rank, self.size = world.rank, world.size
        self.names = names
        self.timeout_seconds = timeout_seconds
        spread = self.size / 1000  # the store answers every rank, so in a large world all takes longer
        self.interval_seconds = INTERVAL_SECONDS + spread
        self.silent_seconds = SILENT_SECONDS + 2 * spread
        self.judge_seconds = JUDGE_SECONDS + 2 * spread
        self.context = context
        self.now = SuspendClock(2 * self.silent_seconds)
        self.store = connect()  # of the background thread; another one would wait for its requests
        self.own_store = connect()  # of the main thread
        self.alarm: str | None = None
        """Why this rank should leave: another one has left or is silent."""
        self.progress: float | None = None
        """When the main thread last made progress; None until it has begun to work."""
        self.waits = 0
        self._verdict: dict[str, Any] | None = None
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
        """Called between two pieces of work, and while waiting for others. Raises why the run is to end."""
        now = self.now()
        if not self.waits:
            self.progress = now
        if self._verdict is not None:
            raise self._as_error(self._verdict)
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
        """Around every wait for other ranks: who waits does not hang."""
        self.waits += 1
        try:
            with self.context.wait_for_others():
                yield
        finally:
            if self.progress is not None:
                self.progress = self.now()
            self.waits -= 1  # the last, for the background thread to see no old progress without a wait

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
            self._take_in(leaving, beats)
            self._report_own_hang()

    def _take_in(self, leaving: int, beats: list[bytes]) -> None:
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
        """End this process if its main thread neither works nor waits for others."""
        patience = self.timeout_seconds
        if self.progress is None:
            patience = max(patience, START_SECONDS)
        waits = self.waits  # before the progress: who stops waiting notes its progress first
        hangs = self.now() - (self.progress or self._started) > patience
        if hangs and not waits and not self._closed.is_set() and self._verdict is None:
            text = f"made no progress for {patience:g} s (cluster.timeout_seconds)"
            with contextlib.suppress(RuntimeError):  # the others notice the silence
                self._post(self.store, "run", f"{self.name}: {text}")
                time.sleep(self.silent_seconds)  # for the others to see it, if this process keeps the store
            self.context.report_hang(text)

    # --- leaving -----------------------------------------------------------------------------------------

    def agree(self, leaving: Exception) -> Exception:
        """Say that this rank leaves, and why. Returns the exception to leave with, the same on all ranks."""
        if self._verdict is None:
            # A store that has not answered for a while will not do so now.
            cut_off = self.now() - self.last_contact > self.silent_seconds
            with self.waiting():
                verdict = run_bounded(
                    lambda: self._settle(leaving), 1.0 if cut_off else 2 * self.judge_seconds
                )
            if isinstance(verdict, Exception):
                cause = self.alarm or f"{self.names[0]} is gone: {first_line(verdict)}"
                verdict = {"kind": "lost", "text": f"{self.name} lost the others: {cause}"}
                if isinstance(leaving, Interrupted):
                    verdict = {"kind": "stop", "signal": leaving.signal_number}
            self._verdict = verdict
        return self._as_error(self._verdict)

    def fail(self, kind: str, text: str) -> None:
        """Tell the others that this rank fails; `kind` is one of FAILURES."""
        if self._verdict is None:
            self._verdict = {"kind": kind, "text": text}
            run_bounded(lambda: self._post(self.own_store, kind, text), self.judge_seconds)

    def _post(self, store: Any, kind: str, text: str, signal_number: int = 0) -> None:
        said = {"kind": kind, "text": text, "signal": signal_number}
        store.set(f"left/{self.rank}", json.dumps(said))
        if self.rank == 0 and kind in FAILURES:
            store.set("verdict", json.dumps(said))
        store.add("leaving", 1)

    def _settle(self, leaving: Exception) -> dict[str, Any]:
        number = leaving.signal_number if isinstance(leaving, Interrupted) else self.context.stop_requested()
        kind = "stop" if number else "lost"
        self._post(self.own_store, kind, f"{self.name} lost the others: {leaving}", number)
        deadline = self.now() + self.judge_seconds
        verdict: dict[str, Any] | None = None
        while verdict is None:
            late = self.now() > deadline
            verdict = self._judge(late) if self.rank == 0 else self._read_verdict(late)
            time.sleep(0.1)
        if self.rank == 0:
            self.own_store.set("verdict", json.dumps(verdict))
        self.own_store.add("informed", 1)
        return verdict

    def _read_verdict(self, late: bool) -> dict[str, Any] | None:
        if self.own_store.check(["verdict"]):
            verdict: dict[str, Any] = json.loads(self.own_store.get("verdict"))
            return verdict
        return self._judge(late=True) if late else None

    def _judge(self, late: bool) -> dict[str, Any] | None:
        """The cause of the end, from what the ranks said; None while some still may say something."""
        texts = self.own_store.multi_get([f"left/{rank}" for rank in range(self.size)])
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

    def _as_error(self, verdict: dict[str, Any]) -> Exception:
        if verdict["kind"] == "stop":
            return Interrupted(verdict["signal"])
        # Whose failure it is names itself in the text; for this rank it is a lost peer.
        return (UsageError if verdict["kind"] == "usage" else PeerLost)(verdict["text"])

    def close(self) -> None:
        """Watch no longer. Rank 0, which may keep the store, stays until the others know the verdict."""
        self._closed.set()
        if self.rank != 0 or self._verdict is None:
            return
        deadline = self.now() + self.silent_seconds
        while self.now() < deadline:
            informed = run_bounded(lambda: self.own_store.add("informed", 0), 1.0)
            if not isinstance(informed, int) or informed >= self.size:
                return
            time.sleep(0.1)
