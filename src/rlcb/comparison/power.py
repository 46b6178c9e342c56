"""The power of a comparison: which difference between two groups a number of seeds can detect."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from rlcb.comparison.statistics import CONFIDENCE

POWER = 0.8
"""The probability with which a detectable difference is detected."""
QUANTILES = (np.arange(4096) + 0.5) / 4096
LARGEST = 1e4  # standard deviations; the upper end of the search


def power(difference: float, seeds: int, tests: int = 1) -> float:
    """Return the probability that a two-sided t-test detects a difference between two groups.

    `difference` is in standard deviations across seeds, which both groups share; each group has `seeds` runs.
    With several `tests` the smallest p must stay below 0.05 / tests, as in Holm's method. The t statistic is
    (Z + shift) / S with a normal Z, shift = difference * sqrt(seeds / 2), and S² a mean of squares with
    2 (seeds - 1) degrees of freedom; the probability is averaged over the quantiles of S.
    """
    degrees, shift = 2 * (seeds - 1), difference * math.sqrt(seeds / 2)
    critical = float(special.stdtrit(degrees, 1 - (1 - CONFIDENCE) / tests / 2))
    spread = np.sqrt(special.chdtri(degrees, QUANTILES) / degrees)  # (4096,)
    detected = special.ndtr(shift - critical * spread) + special.ndtr(-shift - critical * spread)
    return float(detected.mean())


def detectable_effect(seeds: int, tests: int = 1) -> float | None:
    """Return the smallest effect size that a test detects four times out of five: a difference between two
    groups in standard deviations across seeds. None with fewer than two seeds, where no test is possible."""
    if seeds < 2:
        return None
    low, high = 0.0, LARGEST
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, seeds, tests) < POWER else (low, middle)
    return high


def number_of_pairs(groups: int) -> int:
    """Return the number of tests between all pairs of groups."""
    return groups * (groups - 1) // 2
