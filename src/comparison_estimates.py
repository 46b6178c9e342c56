"""Estimates over two groups of runs: how many times faster, and how probably better."""

from __future__ import annotations

from collections.abc import Sequence

from src.statistics import Bootstrap, Estimate, Values, improvement_over_games, stratified_interval

ENOUGH = 5  # runs of a group below which resamples say little


def ratio_estimate(top: Values, bottom: Values, bootstrap: Bootstrap, name: str) -> Estimate | None:
    """Mean of `top` (m,) over the mean of `bottom` (n,), with an interval for the ratio."""
    if not top.size or not bottom.size or not bottom.mean() > 0:
        return None
    interval = stratified_interval([top, bottom], lambda s: s[0].mean(-1) / s[1].mean(-1), bootstrap, name)
    low, high = interval or (None, None)
    return Estimate(float(top.mean() / bottom.mean()), None, low, high, min(top.size, bottom.size))


def improvement_estimate(strata: Sequence[Values], name: str, bootstrap: Bootstrap) -> Estimate | None:
    """Probability of improvement over games; `strata` has ours and theirs of each game in turn, more being
    better.

    It has no interval where a group has few runs, or where all resamples say the same: one without width
    would claim that there is no doubt.
    """
    if not strata or any(not stratum.size for stratum in strata):
        return None
    n = min(stratum.size for stratum in strata)
    interval = stratified_interval(strata, improvement_over_games, bootstrap, name) if n >= ENOUGH else None
    if interval is not None and interval[0] == interval[1]:
        interval = None
    low, high = interval or (None, None)
    return Estimate(float(improvement_over_games(strata)), None, low, high, n)
