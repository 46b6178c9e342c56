"""The rows of a forest plot: mean, interval and seeds of each group in one metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlcb.comparison.analysis import Comparison, GameResult
from rlcb.comparison.findings import planned_over_games, scores_of
from rlcb.comparison.format import MISSING, with_interval
from rlcb.comparison.metrics import BY_KEY, Metric, score_metric
from rlcb.comparison.statistics import IntervalEstimate, Values, finite


class ForestRow(NamedTuple):
    """One group: the values of its seeds (n,), their mean with interval, and both as text."""

    label: str
    seeds: Values
    found: IntervalEstimate | None
    text: str


def forest_rows(game: GameResult, metric: str) -> list[ForestRow]:
    """Return the rows of a game's groups, and of groups that lost all seeds."""
    shown = {result.group.label: result for result in game.groups}
    rows = []
    for label, planned in game.planned.items():
        seeds, found = np.empty(0), None
        if label in shown:
            seeds, found = finite(shown[label].used[metric]), shown[label].estimates[metric]
        rows.append(_row(label, seeds, found, planned, BY_KEY[metric]))
    return rows


def score_rows(comparison: Comparison, metric: str) -> list[ForestRow]:
    """Return the rows of normalised scores over games; without single seeds: each played one game."""
    planned, scores = planned_over_games(comparison), scores_of(comparison, metric)
    return [
        _row(label, np.empty(0), scores.get(label), planned[label], score_metric(metric)) for label in planned
    ]


def _row(
    label: str, seeds: Values, found: IntervalEstimate | None, planned: int, metric: Metric
) -> ForestRow:
    if found is None:
        return ForestRow(label, seeds, None, f"{MISSING}, n=0 of {planned}")
    n = f"n={found.n}" if found.n == planned else f"n={found.n} of {planned}"
    return ForestRow(label, seeds, found, f"{with_interval(metric, found)}, {n}")


def extent(rows: Sequence[ForestRow]) -> tuple[float, float]:
    """Return the ends of the axis that shows all rows, with a margin of 6 %; (0, 1) without a value."""
    shown = [row.seeds for row in rows]
    for row in rows:
        if row.found is not None:
            ends = [row.found.mean if end is None else end for end in (row.found.low, row.found.high)]
            shown.append(np.array([row.found.mean, *ends]))
    values = np.concatenate([np.empty(0), *shown])
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = 0.06 * ((high - low) or abs(high) or 1.0)
    return low - margin, high + margin
