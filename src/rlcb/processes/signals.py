"""SIGINT, SIGTERM and SIGUSR1: the first asks the run to stop at the next safe point, the second ends the
process at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from rlcb.errors import Interrupted


class StopSignal:
    """Context in which the signals are caught; `check()` raises Interrupted once one has come."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self, repeats: bool = False) -> None:
        """With `repeats` only a second SIGINT ends the process: a scheduler or launcher may send several
        signals."""
        self.repeats = repeats
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @classmethod
    @contextlib.contextmanager
    def blocked(cls) -> Iterator[None]:
        """Context in which processes are started that none of the signals is to end."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, cls.SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @classmethod
    def ignore(cls) -> None:
        """Leave the signals, blocked when this process was started, to the process that started it."""
        for number in cls.SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, cls.SIGNALS)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
        elif not self.repeats or number == self.received == signal.SIGINT:
            os._exit(128 + number)

    def check(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)
