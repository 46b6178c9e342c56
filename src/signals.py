"""SIGINT and SIGTERM: the first asks the run to stop at the next safe point, the second ends the process at
once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

from src.errors import Interrupted


class StopSignal:
    """Context in which the signals are caught; `check()` raises Interrupted once one has come."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number

    def check(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)
