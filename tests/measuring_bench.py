"""What processes that measure are made of in tests: a bench that answers, fails, dies or hangs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rlcb.errors import UsageError


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

    def meet(self, folder: str, count: int) -> tuple[int, bool]:
        """The process, and whether `count` of them measured at one time: each says in `folder` that it has
        begun, and waits there for the others."""
        place, deadline = Path(folder), time.monotonic() + 20
        (place / str(os.getpid())).touch()
        while len(list(place.iterdir())) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return os.getpid(), len(list(place.iterdir())) == count

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
