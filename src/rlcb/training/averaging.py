"""When nodes that learn by themselves average: after every K updates (`cluster.average_every`).

With `auto`, they average after each of the first updates and measure S, the seconds of an average, and C,
the seconds of an update without it. With an average after every K updates, averages take S / (K C + S) of the
time. From then on K is the smallest number with which that is less than SHARE, but at most MOST_UPDATES.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

from rlcb.rl.communicator import Communicator
from rlcb.rl.learner import Learner

SHARE = 0.1
"""Averages shall take less than this share of the time."""
MOST_UPDATES = 10
"""The largest K that `auto` chooses: nodes that average more rarely learn alone for much of a run."""
MEASURED = 3  # updates, after one that warms up


def fewest_updates(average_seconds: float, update_seconds: float) -> int:
    """Return the smallest K with average_seconds / (K * update_seconds + average_seconds) < SHARE."""
    return math.floor((1 / SHARE - 1) * average_seconds / update_seconds) + 1


class AverageSchedule:
    """The schedule of averages in one process; all processes of the run have equal ones."""

    def __init__(
        self,
        setting: int | Literal["auto"],
        communicator: Communicator,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`communicator` joins all processes of all nodes. `clock` returns seconds."""
        self.communicator = communicator
        self.clock = clock
        self.is_measured = setting == "auto"
        self.every: int | None = None if setting == "auto" else setting
        """Updates between two averages; None while it is being measured."""
        self.start = 0
        """The update after which the count of updates between averages started."""
        self.average_seconds: float | None = None
        """Measured seconds of an average, the main process's median."""
        self.update_seconds: float | None = None
        """Measured seconds of an update without the average."""
        self._measured: list[tuple[float, float]] = []
        self._last: float | None = None

    def due(self, updates: int) -> bool:
        """Return whether the nodes average after so many updates of the run."""
        return self.every is None or (updates - self.start) % self.every == 0

    def average(self, learner: Learner, updates: int) -> str | None:
        """Average after so many updates of the run. Returns a line to print when K is chosen."""
        if self.every is not None:
            learner.average(self.communicator)
            return None
        self.communicator.barrier()  # from here on, no node waits for another one's update
        begin = self.clock()
        learner.average(self.communicator)
        end = self.clock()
        if self._last is not None:  # the first update warms up
            self._measured.append((end - begin, begin - self._last))
        self._last = end
        return self._choose(updates) if len(self._measured) == MEASURED else None

    def _choose(self, updates: int) -> str:
        seconds = [statistics.median(each) for each in zip(*self._measured, strict=True)]
        average, update = (self.communicator.from_main(each) for each in seconds)
        self.average_seconds, self.update_seconds = round(average, 6), round(update, 6)
        wanted = fewest_updates(self.average_seconds, self.update_seconds)  # as `describe` computes it
        self.every, self.start = min(wanted, MOST_UPDATES), updates
        return self.describe()

    def describe(self) -> str:
        """Return when the nodes average, in words."""
        if self.every is None:
            return f"averages of the nodes every update; after {1 + MEASURED}, as measured (auto)"
        updates = "update" if self.every == 1 else f"{self.every} updates"
        text = f"averages of the nodes every {updates}"
        if self.average_seconds is None or self.update_seconds is None:
            return text
        measured = f"an average {self.average_seconds:.3g} s, an update {self.update_seconds:.3g} s"
        wanted = fewest_updates(self.average_seconds, self.update_seconds)
        limit = (
            f"; {wanted} would take a tenth of the time, but nodes would drift" if wanted > self.every else ""
        )
        return f"{text} (measured: {measured}{limit})"

    def metrics(self) -> dict[str, Any]:
        """Return what a measured schedule adds to benchmark_metrics.json."""
        return {"averages": self.state()} if self.is_measured else {}

    def state(self) -> dict[str, Any]:
        """Return what a resumed run continues from."""
        return {
            "every": self.every,
            "after_update": self.start,
            "average_seconds": self.average_seconds,
            "update_seconds": self.update_seconds,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Keep what `state` returned in the run before it was resumed."""
        self.every, self.start = state["every"], state["after_update"]
        self.average_seconds, self.update_seconds = state["average_seconds"], state["update_seconds"]
