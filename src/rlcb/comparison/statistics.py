"""Statistics over runs: curves on one grid, intervals, tests. Every function is pure.

A *curve* is a pair of arrays (R,): where the figures stand (timesteps or seconds, rising) and the figures.
`values` of a group are one figure for each of its seeds, (n,). Intervals are 95 %.
Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice", is the source of
the interquartile mean, the stratified bootstrap and the probability of improvement.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.integrate import trapezoid

Values = NDArray[np.float64]
CONFIDENCE = 0.95
SAMPLES = 2000
SEED = 20_200_107


class Bootstrap(NamedTuple):
    """How intervals are drawn. Each has a generator of its own, so none depends on what came before it."""

    samples: int = SAMPLES
    seed: int = SEED

    def generator(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])


class IntervalEstimate(NamedTuple):
    """A figure of a group: `std` is of the sample (n - 1); it and the interval are None for one seed."""

    mean: float
    std: float | None
    low: float | None
    high: float | None
    n: int


def finite(values: ArrayLike) -> Values:
    array = np.asarray(values, np.float64)
    kept: Values = array[np.isfinite(array)]
    return kept


def sample_std(values: ArrayLike) -> float | None:
    """Standard deviation with n - 1; None for fewer than two values."""
    array = np.asarray(values, np.float64)
    return float(array.std(ddof=1)) if array.size > 1 else None


def estimate(values: ArrayLike, bootstrap: Bootstrap, name: str) -> IntervalEstimate | None:
    """Mean, sample standard deviation and bootstrap interval of the values that are finite; None without
    any."""
    array = finite(values)
    if not array.size:
        return None
    low, high = (
        stratified_interval([array], lambda strata: strata[0].mean(-1), bootstrap, name) or (None,) * 2
    )
    return IntervalEstimate(float(array.mean()), sample_std(array), low, high, array.size)


Statistic = Callable[[Sequence[Values]], Values]
"""Maps strata, each (..., n), to one figure for each leading index, (...)."""


def stratified_interval(
    strata: Sequence[Values], statistic: Statistic, bootstrap: Bootstrap, name: str
) -> tuple[float, float] | None:
    """Percentile interval of `statistic` when every stratum (n,) is resampled with replacement by itself.

    None if some stratum has fewer than two values: it would look as if it did not vary.
    """
    if any(len(stratum) < 2 for stratum in strata):
        return None
    random = bootstrap.generator(name)
    drawn = [
        stratum[random.integers(0, len(stratum), (bootstrap.samples, len(stratum)))] for stratum in strata
    ]
    return percentile_interval(statistic(drawn))


def percentile_interval(figures: Values) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(figures, (tail, 1 - tail))
    return float(low), float(high)


def interquartile_mean(scores: Values) -> Values:
    """Mean of the middle half along the last axis: a quarter of the scores is cut off at either end.

    Of n scores floor(n / 4) are cut at each end.
    """
    ordered = np.sort(scores, axis=-1)
    cut = ordered.shape[-1] // 4
    middle: Values = ordered[..., cut : ordered.shape[-1] - cut].mean(-1)
    return middle


def pooled(strata: Sequence[Values]) -> Values:
    """All scores of all strata on one last axis."""
    return np.concatenate(strata, axis=-1)


def mean_of_means(strata: Sequence[Values]) -> Values:
    """The mean over games of each game's mean, so that a game with more seeds has no more weight."""
    means: Values = np.mean([stratum.mean(-1) for stratum in strata], axis=0)
    return means


def improvement(ours: Values, theirs: Values) -> Values:
    """P(X > Y) with ties as one half, over the last axes (..., m) and (..., n): Mann-Whitney's U / (m n)."""
    difference = ours[..., :, None] - theirs[..., None, :]
    shares: Values = ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1))
    return shares


def improvement_over_games(strata: Sequence[Values]) -> Values:
    """The mean over games of P(X > Y); `strata` has ours and theirs of each game in turn."""
    pairs = zip(strata[::2], strata[1::2])
    shares: Values = np.mean([improvement(ours, theirs) for ours, theirs in pairs], axis=0)
    return shares


class Welch(NamedTuple):
    """Welch's t-test: difference of means, its 95 % interval, t, degrees of freedom, two-sided p."""

    difference: float
    low: float
    high: float
    t: float
    degrees: float
    p: float


def welch(ours: ArrayLike, theirs: ArrayLike) -> Welch | None:
    """Two-sided test of equal means without equal variances.

    None if a group has fewer than two values, or if neither has any spread: then t does not exist.
    """
    return welch_over_games([finite(ours), finite(theirs)])


def welch_over_games(strata: Sequence[Values]) -> Welch | None:
    """Welch's test of the mean over games of the differences of means; of one game, Welch's test itself.

    `strata` has ours and theirs of each game in turn, (n,) each. Every stratum has its own variance, and the
    degrees of freedom are Satterthwaite's over all of them.
    """
    if any(stratum.size < 2 for stratum in strata):
        return None
    games = len(strata) // 2
    means = np.array([stratum.mean() for stratum in strata])
    errors = np.array([stratum.var(ddof=1) / stratum.size for stratum in strata]) / games**2
    if max(np.ptp(stratum) for stratum in strata) <= 1e-12 * max(np.abs(stratum).max() for stratum in strata):
        return None
    difference, error = float((means[::2] - means[1::2]).mean()), math.sqrt(errors.sum())
    sizes = np.array([stratum.size for stratum in strata])
    degrees = float(errors.sum() ** 2 / (errors**2 / (sizes - 1)).sum())
    t = difference / error
    half = float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2)) * error
    p = 2 * float(special.stdtr(degrees, -abs(t)))
    return Welch(difference, difference - half, difference + half, t, degrees, p)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment for several tests; a test that does not exist stays None and does not count."""
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[index] = largest
    return adjusted


def rising(xs: ArrayLike, ys: ArrayLike) -> tuple[Values, Values]:
    """A curve without gaps and repetitions: finite points in order of x, of equal x the last."""
    x, y = np.asarray(xs, np.float64), np.asarray(ys, np.float64)
    shown = np.isfinite(x) & np.isfinite(y)
    x, y = x[shown], y[shown]
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    last = np.append(x[1:] != x[:-1], True) if x.size else np.zeros(0, bool)
    return x[last], y[last]


def on_grid(xs: Values, ys: Values, grid: ArrayLike) -> Values:
    """A curve at the points of a grid by linear interpolation; NaN before its start and beyond its end."""
    points = np.asarray(grid, np.float64)
    if not xs.size:
        return np.full(points.shape, np.nan)
    inside = (points >= xs[0]) & (points <= xs[-1])
    return np.where(inside, np.interp(points, xs, ys), np.nan)


def area(xs: Values, ys: Values, start: float, end: float) -> float:
    """Area under a curve between two points inside it, over their distance: the mean height. Trapezoids.

    NaN if the curve does not reach over the whole of it.
    """
    if not xs.size or not (xs[0] <= start < end <= xs[-1]):
        return math.nan
    inside = (xs > start) & (xs < end)
    x = np.concatenate([[start], xs[inside], [end]])
    y = np.concatenate([np.interp([start], xs, ys), ys[inside], np.interp([end], xs, ys)])
    return float(trapezoid(y, x) / (end - start))


def first_reached(ys: Values, threshold: float) -> int | None:
    """Index of the first figure at or above a threshold; None if there is none (NaN never is)."""
    reached = np.flatnonzero(ys >= threshold)
    return int(reached[0]) if reached.size else None


class Band(NamedTuple):
    """A group's curve on a grid (P,): mean, interval and number of runs at each point; NaN where there is
    none."""

    mean: Values
    low: Values
    high: Values
    n: NDArray[np.int64]


def band(curves: Sequence[Values], bootstrap: Bootstrap, name: str) -> Band:
    """Mean of curves on one grid, each (P,), with bootstrap intervals pointwise; a curve counts where it is
    finite."""
    table = np.vstack(curves)  # (runs, P)
    alive = np.isfinite(table)
    n = alive.sum(0)
    mean = np.where(n > 0, np.where(alive, table, 0).sum(0) / np.maximum(n, 1), np.nan)
    low, high = np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    for pattern in np.unique(alive, axis=1).T:
        count = int(pattern.sum())
        if count < 2:
            continue
        columns = np.flatnonzero((alive == pattern[:, None]).all(0))
        chosen = bootstrap.generator(name).integers(0, count, (bootstrap.samples, count))
        weights = np.stack([(chosen == run).mean(1) for run in range(count)], axis=1)  # (samples, runs)
        means = table[pattern][:, columns].T @ weights.T  # (points, samples): quantiles along memory
        tail = (1 - CONFIDENCE) / 2
        low[columns], high[columns] = np.quantile(means, (tail, 1 - tail), axis=1)
    return Band(mean, low, high, n)


def stratified_band(tables: Sequence[Values], bootstrap: Bootstrap, name: str) -> Band:
    """The mean over games of each game's mean curve; `tables` has the runs of a game, (runs, P), for each.

    NaN where a game has no run any more; the interval is left out where some run has ended and if a
    game has one run only; `n` is the number of runs of the game that has the fewest.
    """
    alive = [np.isfinite(table) for table in tables]
    n = np.min([each.sum(0) for each in alive], axis=0)
    means = [
        np.where(each, table, 0).sum(0) / np.maximum(each.sum(0), 1) for table, each in zip(tables, alive)
    ]
    mean = np.where(n > 0, np.mean(means, axis=0), np.nan)
    low, high = np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    whole = np.flatnonzero(np.all([each.all(0) for each in alive], axis=0))
    if whole.size and all(len(table) > 1 for table in tables):
        random, total = bootstrap.generator(name), np.zeros((whole.size, bootstrap.samples))
        for table in tables:
            chosen = random.integers(0, len(table), (bootstrap.samples, len(table)))
            weights = np.stack([(chosen == run).mean(1) for run in range(len(table))], axis=1)
            total += table[:, whole].T @ weights.T / len(tables)
        tail = (1 - CONFIDENCE) / 2
        low[whole], high[whole] = np.quantile(total, (tail, 1 - tail), axis=1)
    return Band(mean, low, high, n)


ENOUGH = 5  # runs of a group below which resamples say little


def ratio_estimate(top: Values, bottom: Values, bootstrap: Bootstrap, name: str) -> IntervalEstimate | None:
    """Mean of `top` (m,) over the mean of `bottom` (n,), with an interval for the ratio."""
    if not top.size or not bottom.size or not bottom.mean() > 0:
        return None
    interval = stratified_interval([top, bottom], lambda s: s[0].mean(-1) / s[1].mean(-1), bootstrap, name)
    low, high = interval or (None, None)
    return IntervalEstimate(float(top.mean() / bottom.mean()), None, low, high, min(top.size, bottom.size))


def improvement_estimate(
    strata: Sequence[Values], name: str, bootstrap: Bootstrap
) -> IntervalEstimate | None:
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
    return IntervalEstimate(float(improvement_over_games(strata)), None, low, high, n)
