"""The return over wall clock, composed of a curve over timesteps and a speed over a link."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf.cluster_learning.ways import WAYS, Way


@dataclass(frozen=True)
class Composed:
    """A way over a link, with its speed there and its curve over timesteps."""

    key: str
    ranks: int
    link: str
    rates: list[float]
    """Timesteps per second of each round."""
    every: int | None
    """Updates between two averages."""
    total: int
    """Timesteps of a whole run."""
    timesteps: NDArray[np.float64]
    """By update, (U,)."""
    returns: NDArray[np.float64]
    """(seeds, U); NaN before the first episode ended. No seeds: there is no curve yet."""

    @property
    def way(self) -> Way:
        return WAYS[self.key]

    @property
    def name(self) -> str:
        return f"{self.way.name} ({self.every})" if self.way.every == "auto" else self.way.name

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def has_curve(self) -> bool:
        return len(self.returns) > 0

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean over seeds, (U,)."""
        mean: NDArray[np.float64] = self.returns.mean(axis=0)
        return mean

    @property
    def seconds(self) -> NDArray[np.float64]:
        """The composed wall clock at each update, (U,)."""
        return self.timesteps / self.rate

    def return_after(self, seconds: float) -> float:
        """Return the mean return after so many seconds: NaN before the first update or the first episode's
        end, the last one after the last update."""
        found = np.interp(seconds, self.seconds, self.mean, left=np.nan)
        return float(found)


def compose(cells: Sequence[dict[str, Any]], total: int) -> list[Composed]:
    """Return the cells that have a speed. `total` is the timesteps of a whole run."""
    found = []
    for cell in cells:
        if not cell["speeds"]:
            continue
        every = [speed["every"] for speed in cell["speeds"]]
        returns = [curve["returns"] for curve in cell["curves"]]
        timesteps = cell["curves"][0]["timesteps"] if returns else []
        found.append(
            Composed(
                cell["way"],
                cell["ranks"],
                cell["link"],
                [speed["fps"] for speed in cell["speeds"]],
                None if every[0] is None else int(statistics.median_low(every)),
                total,
                np.array(timesteps, float),
                np.array(returns, float),  # None becomes NaN
            )
        )
    return found


def panels(composed: Sequence[Composed]) -> dict[tuple[int, str], list[Composed]]:
    """Return the ways by number of ranks and link, in the order of measuring."""
    found: dict[tuple[int, str], list[Composed]] = {}
    for each in composed:
        found.setdefault((each.ranks, each.link), []).append(each)
    return found


def horizon(ways: Sequence[Composed]) -> float:
    """Return the seconds that the fastest way needs for all timesteps."""
    return min(each.total / each.rate for each in ways)
