"""Stop signals: how every command of this project reacts to Ctrl-C, kill and the signals of a scheduler.

The first signal asks for a stop at the next safe point: code that can stop calls `StopSignal.check()`. What
later signals do is up to the three kinds of processes:

- a run (the default): the second signal ends the process at once. Inside `StopSignal.breakable()`, where a
  run of one process steps its environments, it shows where the process is and raises Interrupted there, so
  that a run whose environment hangs is saved; the third signal ends the process;
- a run under a launcher or scheduler (`repeats`), which may send several signals: only a second SIGINT does;
- a command that runs other programs (`forwards`): none does. Each signal is passed on to the program that
  runs at that moment (subprocesses.run_logged), and the program decides.

A closed terminal sends SIGHUP, often more than once: no repeated SIGHUP ends a process. A process that was
started to ignore SIGHUP, as `nohup` does, goes on ignoring it.

Worker processes leave all of these signals to their parent: it starts them inside `StopSignal.blocked()`, and
they call `StopSignal.ignore()` first of all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from rlcb.errors import Interrupted
from rlcb.processes.socket_folder import remove_socket_folder

POLL_SECONDS = 0.25
SHOWN_CALLS = 4
"""How many of the innermost calls the second signal shows."""


class StopSignal:
    """Context manager that catches stop signals; used by every process that is not a worker."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    """What stops a run. Schedulers send SIGUSR1 before a time limit, a terminal SIGHUP when it is closed."""
    FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    """What stops a command that runs other programs."""

    def __init__(self, repeats: bool = False, forwards: bool = False) -> None:
        """Choose what later signals do (see the module). With `forwards`, all signals that this process was
        started to ignore stay ignored, otherwise only SIGHUP does."""
        self.repeats = repeats
        self.forwards = forwards
        self.received: list[int] = []
        """The numbers of the signals that came, oldest first."""
        self._before: dict[int, Any] = {}
        self._breakable = False

    def __enter__(self) -> StopSignal:
        for number in self.FORWARDED if self.forwards else self.SIGNALS:
            stays_ignored = self.forwards or number == signal.SIGHUP
            if not (stays_ignored and signal.getsignal(number) is signal.SIG_IGN):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def number(self) -> int:
        """The number of the first signal that came; 0 if none has."""
        return self.received[0] if self.received else 0

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self.received:
            raise Interrupted(self.number)

    @contextlib.contextmanager
    def breakable(self) -> Iterator[None]:
        """Context manager in which the second signal raises Interrupted, wherever the process is."""
        self._breakable = True
        try:
            yield
        finally:
            self._breakable = False

    def sleep(self, seconds: float, on_poll: Callable[[float], None] = lambda left: None) -> None:
        """Wait for `seconds`; raise Interrupted as soon as a signal comes. `on_poll` is called again and
        again with the seconds that are left."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            on_poll(left)
            time.sleep(min(POLL_SECONDS, left))
        self.check()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        repeated = bool(self.received) and not self.forwards and number != signal.SIGHUP
        if repeated and (not self.repeats or number == self.number == signal.SIGINT):
            if self._breakable:
                self._breakable = False
                calls = traceback.format_stack(frame)[-SHOWN_CALLS:]
                sys.stderr.write(f"Stopped in the middle of this step:\n{''.join(calls)}")
                raise Interrupted(self.number)
            remove_socket_folder()
            os._exit(128 + number)
        self.received.append(number)

    @classmethod
    @contextlib.contextmanager
    def blocked(cls) -> Iterator[None]:
        """Context manager in which to start processes that no stop signal must end."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, cls.SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @classmethod
    def ignore(cls) -> None:
        """Ignore stop signals in this process, a worker: its parent handles them."""
        for number in cls.SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, cls.SIGNALS)
