"""The analysis: from groups of runs to estimates, tests and intervals, at equal timesteps and wall clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlcb.comparison.fairness import Difference, differences
from rlcb.comparison.groups import Group, Part, find_baseline, parts_of
from rlcb.comparison.metrics import (
    BY_KEY,
    NORMALISED,
    TESTED,
    TIME_AXES,
    ThresholdResult,
    TimeWindow,
    equal_window,
    metrics_at,
    metrics_of,
    return_curve,
    threshold_of,
    threshold_result,
    times_to_threshold,
    used_values,
)
from rlcb.comparison.procgen_scores import normalise, score_range
from rlcb.comparison.statistics import (
    Bootstrap,
    IntervalEstimate,
    Values,
    Welch,
    estimate,
    finite,
    holm,
    improvement_estimate,
    interquartile_mean,
    mean_of_means,
    pooled,
    ratio_estimate,
    stratified_interval,
    welch,
    welch_over_games,
)


@dataclass(frozen=True)
class Options:
    """How to compare."""

    baseline: str | None = None
    """A label (or the part of one that names one group), or the folder of a run; None: the first group."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Raw return by game; under the empty name for all games."""
    reference: bool = False
    bootstrap: Bootstrap = field(default_factory=Bootstrap)


@dataclass
class GroupResult:
    """A group's figures. `values` has one for each run, NaN where missing."""

    group: Group
    values: dict[str, Values]
    estimates: dict[str, IntervalEstimate | None]
    normalised: dict[str, Values]
    """Procgen-normalised scores (n,) of NORMALISED; empty where no range was published."""
    reached: dict[str, ThresholdResult]
    """By clock; empty without a threshold."""
    used: dict[str, Values] = field(default_factory=dict)
    """As `values`, with NaN also for runs that means and tests leave out: see comparison_metrics.counted."""


class Pair(NamedTuple):
    """Two groups against each other in one figure: first minus second."""

    metric: str
    ours: str
    theirs: str
    counts: tuple[int, int]
    welch: Welch | None
    p_adjusted: float | None
    """Holm's, over all pairs of the game in this figure."""
    improvement: IntervalEstimate | None
    """Probability that a run of the first is better than one of the second."""


@dataclass
class GameResult:
    """All groups in one game; if it was played in several distribution modes, those of one of them."""

    env: str
    """A key: the id of the environment, perhaps with its mode."""
    game: str
    groups: list[GroupResult]
    windows: dict[str, TimeWindow | None]
    pairs: list[Pair]


class Aggregate(NamedTuple):
    """Normalised scores of a variant over games."""

    iqm: IntervalEstimate
    mean: IntervalEstimate


@dataclass
class Across:
    """Variants over the games that all of them played, by metric."""

    games: list[str]
    scores: dict[str, dict[str, Aggregate]]
    pairs: list[Pair]


@dataclass
class Comparison:
    """Everything that the outputs say."""

    options: Options
    baseline: str
    games: list[GameResult]
    across: Across | None
    fairness: list[Difference]
    skipped: list[tuple[Path, str]]

    @property
    def results(self) -> list[GroupResult]:
        return [result for game in self.games for result in game.groups]

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(result.group.label for result in self.results))


def compare(
    groups: Sequence[Group], options: Options, skipped: Sequence[tuple[Path, str]] = ()
) -> Comparison:
    """Analyse at least one group. Raises UsageError if the baseline names none or several of them."""
    baseline = find_baseline(groups, options.baseline)
    games = [compare_game(part, baseline, options) for part in parts_of(groups)]
    fairness = differences(groups, skipped)
    return Comparison(options, baseline, games, over_games(games, options.bootstrap), fairness, list(skipped))


def compare_game(part: Part, baseline: str, options: Options) -> GameResult:
    """Figures of every group of one game, and every two groups against each other."""
    groups = part.groups
    windows = {
        clock.key: equal_window(
            [[(*return_curve(run, clock), run.completed) for run in group.runs] for group in groups]
        )
        for clock in TIME_AXES
    }
    results = [group_result(group, windows, options) for group in groups]
    base = next((result for result in results if result.group.label == baseline), None)
    for result in results:
        speedup = _ratio(result, base, "average_fps", options.bootstrap)
        gain = _ratio(result, base, "timesteps_per_hour", options.bootstrap)
        result.estimates["speedup"] = speedup
        result.estimates["efficiency_gain"] = gain and IntervalEstimate(
            100 * (gain.mean - 1),
            None,
            None if gain.low is None else 100 * (gain.low - 1),
            None if gain.high is None else 100 * (gain.high - 1),
            gain.n,
        )
    pairs = [pair for metric in TESTED for pair in _pairs(results, metric, options.bootstrap)]
    return GameResult(part.key, part.name, results, windows, pairs)


def group_result(group: Group, windows: Mapping[str, TimeWindow | None], options: Options) -> GroupResult:
    threshold = threshold_of(options.thresholds, group.game)
    rows = []
    for run in group.runs:
        at = [metrics_at(run, clock, windows[clock.key]) for clock in TIME_AXES]
        rows.append({**metrics_of(run), **at[0], **at[1], **times_to_threshold(run, threshold)})
    values = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    used = {key: used_values(group.runs, key, each) for key, each in values.items()}
    estimates = {
        key: estimate(each, options.bootstrap, f"{group.name} | {key}") for key, each in used.items()
    }
    limits = score_range(group.env, group.runs[0].setting("env.distribution_mode"))
    normalised = {key: normalise(used[key], limits) for key in NORMALISED} if limits is not None else {}
    times = (
        {clock.key: threshold_result(group.runs, clock, threshold) for clock in TIME_AXES}
        if threshold is not None
        else {}
    )
    return GroupResult(group, values, estimates, normalised, times, used)


def _ratio(
    ours: GroupResult, base: GroupResult | None, key: str, bootstrap: Bootstrap
) -> IntervalEstimate | None:
    """Mean of a group over the mean of the baseline, with an interval for the ratio."""
    if base is None:
        return None
    top, bottom = finite(ours.used[key]), finite(base.used[key])
    if ours is base and top.size and top.mean() > 0:
        return IntervalEstimate(1.0, None, None, None, top.size)
    return ratio_estimate(top, bottom, bootstrap, f"{ours.group.name} / {base.group.name} | {key}")


def _pairs(results: Sequence[GroupResult], metric: str, bootstrap: Bootstrap) -> list[Pair]:
    couples = list(combinations(results, 2))
    tests = [welch(ours.used[metric], theirs.used[metric]) for ours, theirs in couples]
    adjusted = holm([None if test is None else test.p for test in tests])
    pairs, sign = [], BY_KEY[metric].better
    for (ours, theirs), test, p in zip(couples, tests, adjusted):
        strata = [sign * finite(each.used[metric]) for each in (ours, theirs)]
        counts = (strata[0].size, strata[1].size)
        labels = (ours.group.label, theirs.group.label)
        better = improvement_estimate(
            strata, f"{' > '.join(labels)} | {ours.group.env} | {metric}", bootstrap
        )
        pairs.append(Pair(metric, *labels, counts, test, p, better))
    return pairs


def over_games(games: Sequence[GameResult], bootstrap: Bootstrap) -> Across | None:
    """Normalised scores over the Procgen games that every variant played; None if there are none.

    Of several distribution modes the one with the most games: no variant plays in two.
    """
    ranged = [game for game in games if all(result.normalised for result in game.groups)]
    modes = Counter(game.groups[0].group.distribution_mode for game in ranged)
    ranged = [g for g in ranged if g.groups[0].group.distribution_mode == modes.most_common(1)[0][0]]
    labels = list(dict.fromkeys(result.group.label for game in ranged for result in game.groups))
    common = [game for game in ranged if {result.group.label for result in game.groups} == set(labels)]
    if not common:
        return None
    scores: dict[str, dict[str, Aggregate]] = {}
    pairs: list[Pair] = []
    for metric in NORMALISED:
        strata = {label: _strata(common, label, metric) for label in labels}
        known = {label: each for label, each in strata.items() if all(stratum.size for stratum in each)}
        scores[metric] = {
            label: aggregate(each, f"{label} | {metric}", bootstrap) for label, each in known.items()
        }
        pairs += _pairs_over_games(known, metric, bootstrap)
    return Across([game.game for game in common], scores, pairs)


def _pairs_over_games(known: Mapping[str, list[Values]], metric: str, bootstrap: Bootstrap) -> list[Pair]:
    couples = list(combinations(known, 2))
    mixed = [[each for both in zip(known[ours], known[theirs]) for each in both] for ours, theirs in couples]
    tests = [welch_over_games(strata) for strata in mixed]
    adjusted = holm([None if test is None else test.p for test in tests])
    pairs = []
    for (ours, theirs), strata, test, p in zip(couples, mixed, tests, adjusted):
        counts = (sum(s.size for s in strata[::2]), sum(s.size for s in strata[1::2]))
        better = improvement_estimate(strata, f"{ours} > {theirs} | {metric}", bootstrap)
        pairs.append(Pair(metric, ours, theirs, counts, test, p, better))
    return pairs


def _strata(games: Sequence[GameResult], label: str, metric: str) -> list[Values]:
    """Normalised scores of a variant, one array for each game."""
    return [
        finite(result.normalised[metric])
        for game in games
        for result in game.groups
        if result.group.label == label
    ]


def aggregate(strata: Sequence[Values], name: str, bootstrap: Bootstrap) -> Aggregate:
    """Interquartile mean of all runs of all games, and mean over games, resampled within each game."""
    n = sum(stratum.size for stratum in strata)

    def of(statistic: str) -> IntervalEstimate:
        def figure(drawn: Sequence[Values]) -> Values:
            return interquartile_mean(pooled(drawn)) if statistic == "iqm" else mean_of_means(drawn)

        low, high = stratified_interval(strata, figure, bootstrap, name) or (None, None)
        return IntervalEstimate(float(figure(strata)), None, low, high, n)

    return Aggregate(of("iqm"), of("mean"))
