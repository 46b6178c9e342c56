"""A sequential test: which group is best, tested after every round of seeds, with one error for all looks.

A round is one run of each group that is still in question. For two groups, x_1, x_2, ... are the differences
of their values in each round. The e-value of n rounds is the Bayes factor of a t-test (Gönen et al. 2005),

    E_n = (1 + n g)^(-1/2) ((1 + t²/v) / (1 + t²/((1 + n g) v)))^((v + 1)/2),    v = n - 1,

with the t statistic of x_1 ... x_n. Under the alternative the effect size (mean difference divided by its
standard deviation) is normal with variance g; the standard deviation has its right Haar prior. If two groups
do not differ, E_n is a nonnegative martingale of expectation 1 for normal differences of any variance.
By Ville's inequality P(E_n >= c for some n) <= 1/c: rounds can be added without end, and the data may decide
when to stop (Hendriksen, de Heide, Grünwald 2021, "Optional stopping with Bayes factors"; Ramdas, Grünwald,
Vovk, Shafer 2023, "Game-theoretic statistics and safe anytime-valid inference"). Two equal distributions have
symmetric differences even if they are skewed, and t-tests of symmetric values err no more often (Efron 1969).

A group that another one exceeds with E_n >= c is put out: it gets no more seeds. The last one is the best.
Of k groups let b be a best one. A wrong winner needs b to lose to one of the k - 1 others, or to win over a
group that is as good. By symmetry at most half of 1/c falls on each direction, and a smaller true mean makes
a win rarer still. With c = G (k - 1) / alpha, a study of G games puts b out or names a wrong winner with a
probability of at most alpha k / (2 (k - 1)): alpha for two groups, less for more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlcb.comparison.statistics import Values

ALPHA = 0.05
PRIOR_VARIANCE = 2.0
"""g. In simulated studies, differences of one to three standard deviations needed nearly the fewest rounds
with values from 1 to 4."""


ROUNDS_NEEDED = {2: (21, 8), 3: (31, 11), 4: (37, 13), 7: (47, 16)}
"""By number of groups: the rounds after which half of 1,000 simulated studies were settled, with the best
group one and two standard deviations (across seeds) ahead of the others, which were equal."""


def e_values(differences: Values) -> Values:
    """Return E_n after each round, (..., n), from the differences of two groups, (..., n).

    NaN marks a round without a difference, which changes nothing. Up to the first difference E_n is 1.
    """
    t_squared, n = _t_squared(differences)
    degrees = np.maximum(n - 1, 1)
    growth = 1 + n * PRIOR_VARIANCE
    with np.errstate(invalid="ignore"):  # infinite t: equal differences other than zero
        ratio = (1 + t_squared / degrees) / (1 + t_squared / (growth * degrees))
    ratio = np.where(np.isinf(t_squared), growth, ratio)
    return np.where(n < 2, 1.0, growth**-0.5 * ratio ** (n / 2))


def _t_squared(differences: Values) -> tuple[Values, NDArray[np.int64]]:
    """Return the squared t statistic of the differences so far, and their number, each (..., n)."""
    known = np.isfinite(differences)
    values = np.where(known, differences, 0.0)
    n = known.cumsum(-1)
    count = np.maximum(n, 1)
    mean = values.cumsum(-1) / count
    largest = np.abs(values).max(-1, initial=0.0)[..., None]
    centred = values - np.where(known, mean[..., -1:], 0.0)  # a shift for the digits: variances do not change
    squares = (centred**2).cumsum(-1) - centred.cumsum(-1) ** 2 / count
    variance = np.where(squares > 1e-20 * largest**2 * count, squares, 0.0) / np.maximum(n - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_squared = n * mean**2 / variance
    return np.where((n < 2) | (np.abs(mean) <= 1e-12 * largest), 0.0, t_squared), n


def threshold(groups: int, games: int = 1) -> float:
    """Return c, the e-value that puts a group out, for an error of at most ALPHA in the whole study."""
    return games * max(1, groups - 1) / ALPHA


def critical_t(rounds: int, threshold: float) -> float:
    """Return the smallest |t| at which E_n reaches the threshold; infinity if no |t| does."""
    if rounds < 2:
        return math.inf
    growth = 1 + rounds * PRIOR_VARIANCE
    ratio = (threshold * math.sqrt(growth)) ** (2 / rounds)
    if ratio >= growth:
        return math.inf
    return math.sqrt((rounds - 1) * (ratio - 1) / (1 - ratio / growth))


def least_rounds(threshold: float) -> int:
    """Return the number of rounds before which the test cannot decide, however large the difference is."""
    rounds = 2
    while math.isinf(critical_t(rounds, threshold)):
        rounds += 1
    return rounds


def difference_interval(differences: Values, threshold: float) -> tuple[float, float] | None:
    """Return the interval of the true difference that holds at all rounds together, with an error of at most
    1 / threshold; None while it has no end.

    Its ends are mean ± critical |t| * standard deviation / sqrt(n): the differences that the test accepts.
    """
    known = differences[np.isfinite(differences)]
    critical = critical_t(len(known), threshold)
    if math.isinf(critical):
        return None
    half = critical * float(known.std(ddof=1)) / math.sqrt(len(known))
    return float(known.mean()) - half, float(known.mean()) + half


class Exclusion(NamedTuple):
    """A group that was put out: `by` exceeded it after `rounds` rounds with this e-value."""

    label: str
    by: str
    rounds: int
    e_value: float


class Lead(NamedTuple):
    """The difference between the means of two groups over their common rounds, with its interval."""

    first: str
    second: str
    difference: float
    interval: tuple[float, float] | None
    """See `difference_interval`; the error of all intervals of a study is that of its claims."""


@dataclass(frozen=True)
class Decision:
    """The test's decision about the groups of one game."""

    rounds: int
    """Rounds with a value of every group that was in question."""
    threshold: float
    open: tuple[str, ...]
    """The groups in question, the best mean first: two or more, or the winner alone."""
    excluded: tuple[Exclusion, ...]
    lead: Lead | None
    """The first of `open` and the group with the next mean; None without a common round."""

    @property
    def winner(self) -> str | None:
        """The best group; None while several are in question."""
        return self.open[0] if len(self.open) == 1 and self.excluded else None


def decide(values: Mapping[str, Sequence[float]], games: int = 1) -> Decision:
    """Test the groups of one game round by round.

    `values` holds one value per round for each label, higher is better: NaN where a run failed, and a shorter
    list for a group that was put out. `games` is the number of games of the study.
    """
    labels = list(values)
    rounds = max((len(each) for each in values.values()), default=0)
    table = np.full((len(labels), rounds), np.nan)
    for row, label in zip(table, labels):
        row[: len(values[label])] = values[label]
    least = threshold(len(labels), games)
    differences = table[:, None] - table[None, :]  # (k, k, n)
    evidence = e_values(differences)
    totals = np.where(np.isfinite(differences), differences, 0.0).cumsum(-1)
    wins = (evidence >= least) & (totals > 0)  # [i, j, n]: group i exceeds group j
    open_groups, excluded = list(range(len(labels))), []
    for look in np.flatnonzero(wins.any((0, 1))):
        for j in list(open_groups):
            winners = [i for i in open_groups if wins[i, j, look] and len(values[labels[j]]) > look]
            if winners:
                best = max(winners, key=lambda i: evidence[i, j, look])
                excluded.append(
                    Exclusion(labels[j], labels[best], int(look) + 1, float(evidence[best, j, look]))
                )
                open_groups.remove(j)
    seen = np.isfinite(table[open_groups]).all(0)
    order = sorted(open_groups, key=lambda i: -table[i][seen].sum())
    lead = _lead(labels, order[0], table, least) if order else None
    return Decision(int(seen.sum()), least, tuple(labels[i] for i in order), tuple(excluded), lead)


def _lead(labels: Sequence[str], first: int, table: Values, threshold: float) -> Lead | None:
    """Return the lead of a group over the closest other one; `table` holds the values, (groups, rounds)."""
    differences = {i: each[np.isfinite(each)] for i, each in enumerate(table[first] - table) if i != first}
    means = {i: float(each.mean()) for i, each in differences.items() if each.size}
    if not means:
        return None
    second = min(means, key=lambda i: means[i])
    interval = difference_interval(differences[second], threshold)
    return Lead(labels[first], labels[second], means[second], interval)
