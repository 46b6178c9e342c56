"""A clock for time-outs, which stands still while its process is suspended."""

from __future__ import annotations

import threading
import time

SUSPENDED_SECONDS = 5.0  # between two looks at the clock; a process that runs looks several times a second


class SuspendClock:
    """Seconds by the monotonic clock, less those for which this process could not run: Ctrl-Z and SIGSTOP, a
    paused container, a scheduler that suspends a job.

    Some thread has to look at it again and again: when none has for longer than `suspended_seconds`, the
    process is taken to have been suspended meanwhile.
    """

    def __init__(self, suspended_seconds: float = SUSPENDED_SECONDS) -> None:
        self._longest = suspended_seconds
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._suspended = 0.0
        self._told = 0.0

    def __call__(self) -> float:
        with self._lock:
            now = time.monotonic()
            if now - self._looked > self._longest:
                self._suspended += now - self._looked
            self._looked = now
            return now - self._suspended

    def suspension(self) -> float:
        """Seconds for which this process was suspended since this was last asked."""
        self()
        seconds, self._told = self._suspended - self._told, self._suspended
        return seconds
