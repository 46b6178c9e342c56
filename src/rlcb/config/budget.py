"""How long a run trains: a number of timesteps, a time, or both, whichever ends first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlcb.config.config import Config

DEFAULT_HOURS = 1.0  # of a timed script that is told none


@dataclass(frozen=True)
class Budget:
    """Timesteps are rounded up to whole updates; a time ends at the update boundary nearest to it."""

    timesteps_per_update: int
    timesteps: int | None
    seconds: float | None

    @classmethod
    def of(cls, config: Config) -> Budget:
        hours = config.training.duration_hours
        return cls(
            config.timesteps_per_update,
            config.training.total_timesteps,
            None if hours is None else hours * 3600,
        )

    @property
    def updates(self) -> int | None:
        return None if self.timesteps is None else math.ceil(self.timesteps / self.timesteps_per_update)

    def share_used(self, updates: int, elapsed: float) -> float:
        """The used share of the limit that is nearest to its end, from 0 to 1."""
        shares = [0.0]
        if self.updates is not None:
            shares.append(updates / self.updates)
        if self.seconds is not None:
            shares.append(elapsed / self.seconds)
        return min(1.0, max(shares))

    def finished(self, updates: int, elapsed: float, update_seconds: float) -> bool:
        """Whether to stop here, after `updates` updates of which the last took `update_seconds`.

        At least one update is made. A timed run stops if the next boundary would lie farther from the
        deadline.
        """
        if updates == 0:
            return False
        if self.updates is not None and updates >= self.updates:
            return True
        return self.seconds is not None and elapsed + update_seconds / 2 >= self.seconds
