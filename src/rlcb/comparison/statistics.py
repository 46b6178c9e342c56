"""Statistics over runs: curves on a common grid, intervals and tests. All functions are pure.

A *curve* is a pair of arrays (R,): rising positions (timesteps or seconds) and values. The `values` of a
group are one number per seed, (n,). Intervals have a confidence of 95 %.
The interquartile mean, the stratified bootstrap and the probability of improvement follow Agarwal et al.
2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # loads its modules when they are used, which keeps completion fast
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]
CONFIDENCE = 0.95
SAMPLES = 2000
SEED = 20_200_107


class Bootstrap(NamedTuple):
    """The settings of bootstrap intervals. Each interval has its own random generator, seeded by its name, so
    intervals do not depend on each other."""

    samples: int = SAMPLES
    seed: int = SEED

    def generator(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])


class IntervalEstimate(NamedTuple):
    """The mean of a metric over `n` seeds, with sample standard deviation (n - 1) and interval (`low`,
    `high`), which are None for one seed."""

    mean: float
    std: float | None
    low: float | None
    high: float | None
    n: int


def finite(values: ArrayLike) -> Values:
    """Return the finite values as a float64 array."""
    array = np.asarray(values, np.float64)
    kept: Values = array[np.isfinite(array)]
    return kept


def sample_std(values: ArrayLike) -> float | None:
    """Return the standard deviation with n - 1; None for fewer than two values."""
    array = np.asarray(values, np.float64)
    return float(array.std(ddof=1)) if array.size > 1 else None


def estimate(values: ArrayLike, bootstrap: Bootstrap, name: str) -> IntervalEstimate | None:
    """Return mean, sample standard deviation and bootstrap interval of the finite values; None if there are
    none."""
    array = finite(values)
    if not array.size:
        return None
    low, high = (
        stratified_interval([array], lambda strata: strata[0].mean(-1), bootstrap, name) or (None,) * 2
    )
    return IntervalEstimate(float(array.mean()), sample_std(array), low, high, array.size)


Statistic = Callable[[Sequence[Values]], Values]
"""Maps strata, each (..., n), to one value for each leading index, (...)."""


def stratified_interval(
    strata: Sequence[Values], statistic: Statistic, bootstrap: Bootstrap, name: str
) -> tuple[float, float] | None:
    """Return the percentile bootstrap interval of `statistic`; each stratum (n,) is resampled separately.

    None if a stratum has fewer than two values, because its resamples would not vary.
    """
    if any(len(stratum) < 2 for stratum in strata):
        return None
    random = bootstrap.generator(name)
    drawn = [
        stratum[random.integers(0, len(stratum), (bootstrap.samples, len(stratum)))] for stratum in strata
    ]
    return percentile_interval(statistic(drawn))


def percentile_interval(values: Values) -> tuple[float, float]:
    """Return the central 95 % interval of bootstrap values."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return float(low), float(high)


def interquartile_mean(scores: Values) -> Values:
    """Return the mean of the middle half along the last axis: floor(n / 4) scores are cut at each end."""
    ordered = np.sort(scores, axis=-1)
    cut = ordered.shape[-1] // 4
    middle: Values = ordered[..., cut : ordered.shape[-1] - cut].mean(-1)
    return middle


def pooled(strata: Sequence[Values]) -> Values:
    """Concatenate the scores of all strata along the last axis."""
    return np.concatenate(strata, axis=-1)


def mean_of_means(strata: Sequence[Values]) -> Values:
    """Return the mean over games of each game's mean, so that all games have equal weight."""
    means: Values = np.mean([stratum.mean(-1) for stratum in strata], axis=0)
    return means


def improvement(first: Values, second: Values) -> Values:
    """Return P(X > Y) with ties as one half, of samples (..., m) and (..., n): Mann-Whitney's U / (m n)."""
    difference = first[..., :, None] - second[..., None, :]
    shares: Values = ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1))
    return shares


def improvement_over_games(strata: Sequence[Values]) -> Values:
    """Return the mean over games of P(X > Y); `strata` alternates X and Y of each game."""
    pairs = zip(strata[::2], strata[1::2])
    shares: Values = np.mean([improvement(first, second) for first, second in pairs], axis=0)
    return shares


class Welch(NamedTuple):
    """Welch's t-test: difference of means, 95 % interval, t, degrees of freedom and two-sided p."""

    difference: float
    low: float
    high: float
    t: float
    degrees: float
    p: float

    @property
    def error(self) -> float:
        """The standard error of the difference."""
        return (self.high - self.low) / 2 / float(scipy.special.stdtrit(self.degrees, (1 + CONFIDENCE) / 2))


def welch(first: ArrayLike, second: ArrayLike) -> Welch | None:
    """Run Welch's t-test of equal means (two-sided, unequal variances).

    None if a group has fewer than two values, or if all values of both groups are equal.
    """
    return welch_over_games([finite(first), finite(second)])


def welch_over_games(strata: Sequence[Values]) -> Welch | None:
    """Run Welch's test on the mean over games of the differences of means.

    `strata` alternates the first and the second group of each game, (n,) each. Every stratum has its own
    variance; the degrees of freedom follow Satterthwaite. For one game this is Welch's test.
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
    half_width = float(scipy.special.stdtrit(degrees, (1 + CONFIDENCE) / 2)) * error
    p = 2 * float(scipy.special.stdtr(degrees, -abs(t)))
    return Welch(difference, difference - half_width, difference + half_width, t, degrees, p)


class Sample(NamedTuple):
    """The size of a sample, its mean, and its standard deviation with n - 1."""

    mean: float
    std: float
    n: int

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.std / math.sqrt(self.n)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean by Student's t; needs n of at least 2."""
        half = float(scipy.special.stdtrit(self.n - 1, (1 + CONFIDENCE) / 2)) * self.error
        return self.mean - half, self.mean + half


def difference_p(first: Sample, second: Sample) -> float:
    """Return the two-sided p of Welch's t-test from summaries of two samples, each with n of at least 2.

    Without variance p is 1 for equal means and 0 for others.
    """
    errors = first.error**2, second.error**2
    if sum(errors) == 0:
        return float(first.mean == second.mean)
    degrees = sum(errors) ** 2 / (errors[0] ** 2 / (first.n - 1) + errors[1] ** 2 / (second.n - 1))
    return 2 * float(scipy.special.stdtr(degrees, -abs(first.mean - second.mean) / math.sqrt(sum(errors))))


POWER = 0.8


def detectable_difference(error: float, degrees: float, tests: int = 1, level: float = 0.05) -> float:
    """Return the smallest true difference that a two-sided t-test detects with a probability of POWER.

    `error` is the standard error of the difference; for two groups of n runs with standard deviation s it is
    s * sqrt(2 / n), with 2 n - 2 degrees of freedom. `tests` is the number of tests that Holm's method
    adjusts for: the smallest p must be below `level` / `tests`. Inverts the noncentral t distribution.
    """
    needed = float(scipy.special.stdtrit(degrees, 1 - level / tests / 2))
    return float(scipy.special.nctdtrinc(degrees, 1 - POWER, needed)) * error


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p values for several tests by Holm's method; None entries stay None and are not counted."""
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[index] = largest
    return adjusted


def rising(xs: ArrayLike, ys: ArrayLike) -> tuple[Values, Values]:
    """Return the finite points of a curve, sorted by x; of points with equal x the last one."""
    x, y = np.asarray(xs, np.float64), np.asarray(ys, np.float64)
    shown = np.isfinite(x) & np.isfinite(y)
    x, y = x[shown], y[shown]
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    last = np.append(x[1:] != x[:-1], True) if x.size else np.zeros(0, bool)
    return x[last], y[last]


def on_grid(xs: Values, ys: Values, grid: ArrayLike) -> Values:
    """Interpolate a curve linearly at the points of a grid; NaN before its start and after its end."""
    points = np.asarray(grid, np.float64)
    if not xs.size:
        return np.full(points.shape, np.nan)
    inside = (points >= xs[0]) & (points <= xs[-1])
    return np.where(inside, np.interp(points, xs, ys), np.nan)


def area(xs: Values, ys: Values, start: float, end: float) -> float:
    """Return the mean height of a curve between `start` and `end`, by the trapezoidal rule.

    NaN if the curve does not cover this interval.
    """
    if not xs.size or not (xs[0] <= start < end <= xs[-1]):
        return math.nan
    inside = (xs > start) & (xs < end)
    x = np.concatenate([[start], xs[inside], [end]])
    y = np.concatenate([np.interp([start], xs, ys), ys[inside], np.interp([end], xs, ys)])
    return float(scipy.integrate.trapezoid(y, x) / (end - start))


def first_reached(ys: Values, threshold: float) -> int | None:
    """Return the index of the first value at or above a threshold; None if there is none."""
    reached = np.flatnonzero(ys >= threshold)
    return int(reached[0]) if reached.size else None


class Band(NamedTuple):
    """The mean curve of a group on a grid (P,), with its interval and the number of runs; NaN where it does
    not exist."""

    mean: Values
    low: Values
    high: Values
    n: NDArray[np.int64]


def band(tables: Sequence[Values], bootstrap: Bootstrap, name: str) -> Band:
    """Return the mean over games of each game's mean curve, with pointwise bootstrap intervals.

    `tables` holds the runs (runs, P) of each game. The mean exists only where all runs do, so a run that
    starts later or ends earlier does not bend it. There is no interval if a game has one run. `n` is the
    smallest number of runs of a game, 0 where there is no mean.
    """
    whole = np.flatnonzero(np.all([np.isfinite(table).all(0) for table in tables], axis=0))
    mean = np.full(tables[0].shape[1], np.nan)
    low, high, n = mean.copy(), mean.copy(), np.zeros(mean.shape, np.int64)
    mean[whole] = np.mean([table[:, whole].mean(0) for table in tables], axis=0)
    n[whole] = min(len(table) for table in tables)
    if whole.size and all(len(table) > 1 for table in tables):
        random, total = bootstrap.generator(name), np.zeros((whole.size, bootstrap.samples))
        for table in tables:
            chosen = random.integers(0, len(table), (bootstrap.samples, len(table)))
            weights = np.stack([(chosen == run).mean(1) for run in range(len(table))], axis=1)
            total += table[:, whole].T @ weights.T / len(tables)  # (points, samples)
        tail = (1 - CONFIDENCE) / 2
        low[whole], high[whole] = np.quantile(total, (tail, 1 - tail), axis=1)
    return Band(mean, low, high, n)


ENOUGH = 5  # with fewer runs in a group, bootstrap intervals are too narrow


def ratio_estimate(top: Values, bottom: Values, bootstrap: Bootstrap, name: str) -> IntervalEstimate | None:
    """Return the ratio of the means of `top` (m,) and `bottom` (n,), with its interval."""
    if not top.size or not bottom.size or not bottom.mean() > 0:
        return None
    interval = stratified_interval([top, bottom], lambda s: s[0].mean(-1) / s[1].mean(-1), bootstrap, name)
    low, high = interval or (None, None)
    return IntervalEstimate(float(top.mean() / bottom.mean()), None, low, high, min(top.size, bottom.size))


def improvement_estimate(
    strata: Sequence[Values], name: str, bootstrap: Bootstrap
) -> IntervalEstimate | None:
    """Return the probability of improvement over games; `strata` alternates the first and the second group of
    each game, with higher values better.

    There is no interval if a group has fewer than ENOUGH runs, or if all resamples are equal: an interval of
    zero width would claim certainty.
    """
    if not strata or any(not stratum.size for stratum in strata):
        return None
    n = min(stratum.size for stratum in strata)
    interval = stratified_interval(strata, improvement_over_games, bootstrap, name) if n >= ENOUGH else None
    if interval is not None and interval[0] == interval[1]:
        interval = None
    low, high = interval or (None, None)
    return IntervalEstimate(float(improvement_over_games(strata)), None, low, high, n)
