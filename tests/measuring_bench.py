"""What processes that measure are made of in tests: a bench that answers, fails, dies or hangs."""

from __future__ import annotations

import os
import time

from src.errors import UsageError


class Bench:
    def __init__(self, import_seconds: float, factor: int) -> None:
        self.import_seconds = import_seconds
        self.factor = factor
        self.asked = 0

    def times(self, number: int) -> int:
        self.asked += 1
        return self.factor * number

    def asked_before(self) -> int:
        return self.asked

    def where(self) -> tuple[int, float, float]:
        """The process, and the times of day at which it began and ended."""
        begun = time.time()
        time.sleep(0.5)
        return os.getpid(), begun, time.time()

    def threads(self) -> str | None:
        return os.environ.get("OMP_NUM_THREADS")

    def refuse(self) -> None:
        raise UsageError("there is no such environment")

    def fail(self) -> None:
        raise ValueError("seven is not even")

    def die(self) -> None:
        os._exit(3)

    def hang(self) -> None:
        time.sleep(60)
