"""The objective of tuning: the training return at the end of the budget, on one scale for all games.

A run's budget has BUDGET_PARTS parts of equal wall clock (or of equal timesteps). After each part the run has
a score, the return in the last WINDOW_PARTS parts. The score after the last part is the run's result; the
earlier ones let Optuna compare trials at equal wall clock while they train.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rlcb.comparison.procgen_scores import normalise, score_range
from rlcb.config.config import Config
from rlcb.errors import UsageError

BUDGET_PARTS = 8
WINDOW_PARTS = 2

Row = Mapping[str, Any]


def position(row: Row, timed: bool) -> float:
    """Return where in its budget a run is at a row: seconds, or timesteps."""
    return float(row["time/elapsed_seconds"] if timed else row["timesteps"])


class Window(NamedTuple):
    """The rewards, episodes and timesteps of a run between two positions."""

    rewards: float
    """The sum of all raw rewards."""
    episodes: int
    """The number of episodes that ended."""
    num_envs: int

    @property
    def mean_return(self) -> float:
        """The rewards divided by the number of episodes, or by the number of environments if that is larger.

        So episodes that do not end count as well: a policy that stands still scores what it gets, and not the
        mean of episodes that ended long ago.
        """
        return self.rewards / max(self.episodes, self.num_envs)

    @property
    def is_short(self) -> bool:
        """Whether fewer episodes ended than there are environments. Unfinished ones then count as whole."""
        return self.episodes < self.num_envs


def window(rows: Sequence[Row], start: float, end: float, num_envs: int, timed: bool) -> Window | None:
    """Return what a run did after `start` and until `end`, two positions; None before the first update.

    If no row lies in the window, the last one before its end counts.
    """
    before = [row for row in rows if position(row, timed) <= start]
    inside = [row for row in rows if start < position(row, timed) <= end]
    if not inside and not before:
        return None
    if not inside:
        before, inside = before[:-1], before[-1:]
    steps, episodes = (before[-1]["timesteps"], before[-1]["rollout/episodes"]) if before else (0, 0)
    rewards, last = 0.0, steps
    for row in inside:
        rewards += row["rollout/reward_per_step"] * (row["timesteps"] - last)
        last = row["timesteps"]
    return Window(float(rewards), inside[-1]["rollout/episodes"] - episodes, num_envs)


def window_of_part(
    rows: Sequence[Row], part: int, budget: float, num_envs: int, timed: bool
) -> Window | None:
    """Return the window that ends with part number `part` (from 1) of the budget (seconds, or timesteps)."""
    end = budget * part / BUDGET_PARTS
    if part == BUDGET_PARTS:
        end = float("inf")  # the last update of a run may end after the budget
    return window(rows, budget * (part - WINDOW_PARTS) / BUDGET_PARTS, end, num_envs, timed)


def normalised(value: float, config: Config) -> float:
    """Return a return on the scale of the published scores of Procgen's game; unchanged for other
    environments."""
    limits = score_range(config.env.id, config.env.distribution_mode)
    return value if limits is None else float(normalise(value, limits))


def require_one_scale(configs: Sequence[Config]) -> None:
    """Raise UsageError if the returns of several environments cannot be averaged."""
    envs = {config.env.id: config for config in configs}
    for env, config in envs.items():
        if len(envs) > 1 and score_range(env, config.env.distribution_mode) is None:
            raise UsageError(
                f"--envs {env}: several environments are averaged on the published scale of Procgen's games "
                "(easy or hard), and this one has none; tune for it alone"
            )


def joint_score(finished: Sequence[float], current: float | None = None) -> float:
    """Return the mean score of a trial's runs: those that finished, and the one that is training."""
    return fmean([*finished, *([] if current is None else [current])])


@dataclass
class RowReader:
    """Reads the rows of a run's metrics.jsonl while the run writes them."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    _offset: int = 0
    _inode: int = 0

    def read(self) -> list[dict[str, Any]]:
        """Return all complete rows that are in the file now."""
        for path in self.folder.glob("logs/*/metrics.jsonl"):
            with path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:  # a run that resumes replaces the file
                    self.rows, self._offset, self._inode = [], 0, inode
                file.seek(self._offset)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offset += len(whole)
            self.rows += [json.loads(line) for line in whole.splitlines()]
        return self.rows
