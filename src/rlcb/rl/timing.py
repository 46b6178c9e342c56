"""Where the wall clock of a process goes, by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("env", "inference", "learn", "sync", "wait")


class PhaseTimer:
    """Seconds spent in each phase of the loop. Phases do not nest; what lies outside of them counts as
    `other`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start
