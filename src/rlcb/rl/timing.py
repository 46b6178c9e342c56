"""The wall-clock time of a process, by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("env", "inference", "learn", "sync", "wait")


class PhaseTimer:
    """Sums the seconds that a process spends in each phase: `with timer("env"): ...`.

    Phases must not nest. Time outside of all phases is reported as `other`.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start
