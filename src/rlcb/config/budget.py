"""How long a run trains: a number of timesteps, a time, or both; it ends at whichever comes first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlcb.config.config import Config

DEFAULT_HOURS = 1.0  # of a timed script without --duration


def with_default_budget(settings: Any) -> Any:
    """Return the settings of a study or tuning, with a duration if they have neither of the two budgets."""
    if isinstance(settings, Mapping) and (
        settings.get("duration") is None and settings.get("total_timesteps") is None
    ):
        return {**settings, "duration": DEFAULT_HOURS}
    return settings


def require_one_budget(duration: float | None, total_timesteps: int | None) -> None:
    """Raise ValueError if the runs of a study or tuning have both budgets."""
    if duration is not None and total_timesteps is not None:
        raise ValueError(
            f"duration = {duration:g} and total_timesteps = {total_timesteps}: "
            "every run has one budget, give one of them"
        )


def few_timesteps(config: Config) -> str:
    """Return a warning if a run has fewer timesteps than one update needs; "" if it has enough."""
    wanted, update = config.training.total_timesteps, config.timesteps_per_update
    if wanted is None or wanted >= update:
        return ""
    return (
        f"training.total_timesteps = {wanted}: one update takes {update:,} timesteps, so the run makes "
        f"{update:,}; {_shorter_updates(config)}"
    )


def late_first_update(config: Config) -> str:
    """Return the warning of a run whose time ends before its first update."""
    seconds = (config.training.duration_hours or 0.0) * 3600
    what = "worker 0's first update" if config.traits.is_asynchronous else "the first update"
    return (
        f"the limit of {seconds:.4g} s has passed, and {what} of "
        f"{config.timesteps_per_update:,} timesteps is not complete. The run ends with it, so it takes "
        f"longer than the limit; {_shorter_updates(config)}"
    )


def _shorter_updates(config: Config) -> str:
    """Return the settings that make updates shorter, as advice."""
    key = "training.batch_size" if config.has_actors else "training.n_steps or env.num_envs"
    return f"a smaller {key} makes updates shorter"


@dataclass(frozen=True)
class Budget:
    """The limits of a run.

    Timesteps are rounded up to whole updates. A timed run ends at the update boundary nearest to its limit.
    """

    timesteps_per_update: int
    timesteps: int | None
    seconds: float | None

    @classmethod
    def of(cls, config: Config) -> Budget:
        """Return the budget of a configuration."""
        hours = config.training.duration_hours
        return cls(
            config.timesteps_per_update,
            config.training.total_timesteps,
            None if hours is None else hours * 3600,
        )

    @property
    def updates(self) -> int | None:
        """The number of updates; None without a limit of timesteps."""
        return None if self.timesteps is None else math.ceil(self.timesteps / self.timesteps_per_update)

    def share_used(self, updates: int, elapsed: float) -> float:
        """Return the used share of the budget, from 0 to 1; with two limits, the larger share."""
        shares = [0.0]
        if self.updates is not None:
            shares.append(updates / self.updates)
        if self.seconds is not None:
            shares.append(elapsed / self.seconds)
        return min(1.0, max(shares))

    def seconds_left(self, updates: int, elapsed: float) -> float | None:
        """Return the seconds to the end at the speed so far; None before the first update, unless the time is
        limited."""
        left = [] if self.seconds is None else [self.seconds - elapsed]
        if self.updates is not None and updates:
            left.append(elapsed * (self.updates / updates - 1))
        return max(0.0, min(left)) if left else None

    def finished(self, updates: int, elapsed: float, update_seconds: float) -> bool:
        """Whether the run ends after `updates` updates and `elapsed` seconds.

        Every run makes at least one update. A timed run ends here if the next boundary would be farther from
        the limit; `update_seconds` is the time of the last update.
        """
        if updates == 0:
            return False
        if self.updates is not None and updates >= self.updates:
            return True
        return self.seconds is not None and elapsed + update_seconds / 2 >= self.seconds
