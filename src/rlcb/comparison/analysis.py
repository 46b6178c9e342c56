"""Analyse groups of runs: estimates, intervals and tests at equal timesteps and equal wall-clock time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import numpy as np

from rlcb.comparison.fairness import Difference, differences
from rlcb.comparison.groups import Group, LostGroup, Part, find_baseline, parts_of, with_lost
from rlcb.comparison.lost import LostRun
from rlcb.comparison.metrics import (
    BY_KEY,
    EVALUATIONS,
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
from rlcb.comparison.sequential_test import Decision
from rlcb.comparison.statistics import (
    Bootstrap,
    IntervalEstimate,
    Statistic,
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
    """The options of a comparison."""

    baseline: str | None = None
    """A label, a part of a label that only one group has, or the folder of a run; None: the first group."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Raw return by game; the empty name stands for all games."""
    reference: bool = False
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    """What the sequential test says about a study that added seeds in rounds, by environment."""


@dataclass
class GroupResult:
    """The metrics of a group. `values` holds one value per run for each metric, NaN where missing."""

    group: Group
    values: dict[str, Values]
    estimates: dict[str, IntervalEstimate | None]
    normalised: dict[str, Values]
    """Procgen-normalised scores (n,) by metric; empty for games without published score ranges."""
    reached: dict[str, ThresholdResult]
    """By key of the time axis; empty without a threshold."""
    used: dict[str, Values] = field(default_factory=dict)
    """Like `values`, with NaN for runs that means and tests leave out (see `metrics.used_values`)."""


class Pair(NamedTuple):
    """The test of one metric between two groups: first minus second."""

    metric: str
    first: str
    second: str
    counts: tuple[int, int]
    welch: Welch | None
    p_adjusted: float | None
    """Adjusted by Holm's method over all pairs of the game in this metric."""
    improvement: IntervalEstimate | None
    """Probability that a run of the first group is better than a run of the second."""


@dataclass
class GameResult:
    """The results of all groups in one game and one distribution mode."""

    env: str
    """The key of the part (see `groups.Part`): the environment id, sometimes with the mode."""
    game: str
    groups: list[GroupResult]
    windows: dict[str, TimeWindow | None]
    pairs: list[Pair]
    lost: list[LostGroup] = field(default_factory=list)
    """Groups of this game that lost all of their runs."""

    @property
    def evaluated(self) -> str | None:
        """The metric of the final checkpoints' evaluations: on unseen levels, or else on all levels.

        None if no run was evaluated.
        """
        has = [key for key in EVALUATIONS if any(each.estimates[key] is not None for each in self.groups)]
        return has[0] if has else None

    def decision(self, options: Options) -> Decision | None:
        """Return what the sequential test says about this game; None if it tested other groups or none."""
        found = options.decisions.get(self.groups[0].group.env)
        labels = {result.group.label for result in self.groups}
        tested = {*found.open, *(each.label for each in found.excluded)} if found is not None else set()
        return found if tested == labels else None

    @property
    def planned(self) -> dict[str, int]:
        """The number of seeds that each group should have, by label; includes groups that lost all."""
        return {result.group.label: result.group.planned for result in self.groups} | {
            group.label: len(group.lost) for group in self.lost
        }


class Aggregate(NamedTuple):
    """Normalised scores of a variant over games: interquartile mean and mean."""

    iqm: IntervalEstimate
    mean: IntervalEstimate


@dataclass
class Across:
    """The comparison of variants over the games that all of them played, by metric."""

    games: list[str]
    scores: dict[str, dict[str, Aggregate]]
    pairs: list[Pair]


@dataclass
class Comparison:
    """The whole result of a comparison; every output is made from it."""

    options: Options
    baseline: str
    games: list[GameResult]
    across: Across | None
    fairness: list[Difference]
    skipped: list[LostRun]
    lost: list[LostGroup]
    """Groups that lost all of their runs, in all games."""

    @property
    def results(self) -> list[GroupResult]:
        return [result for game in self.games for result in game.groups]

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(result.group.label for result in self.results))


def compare(groups: Sequence[Group], options: Options, skipped: Sequence[LostRun] = ()) -> Comparison:
    """Compare one or more groups; `skipped` are the runs that were left out.

    Raises UsageError if the baseline matches no group or several groups.
    """
    baseline = find_baseline(groups, options.baseline)
    groups, lost = with_lost(groups, skipped)
    games = [compare_game(part, baseline, options) for part in parts_of(groups)]
    for game in games:
        first = next(each for each in games if each.groups[0].group.env == game.groups[0].group.env)
        game.lost = [each for each in lost if each.env == game.groups[0].group.env and first is game]
    across = over_games(games, options.bootstrap)
    return Comparison(options, baseline, games, across, differences(groups, skipped), list(skipped), lost)


def compare_game(part: Part, baseline: str, options: Options) -> GameResult:
    """Compute the metrics of every group of one game, and test every pair of groups."""
    groups = part.groups
    windows = {
        time_axis.key: equal_window(
            [[(*return_curve(run, time_axis), run.completed) for run in group.runs] for group in groups]
        )
        for time_axis in TIME_AXES
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
    """Compute the metrics of one group. `windows` holds the common window of its game by time axis."""
    threshold = threshold_of(options.thresholds, group.game)
    rows = []
    for run in group.runs:
        at = [metrics_at(run, time_axis, windows[time_axis.key]) for time_axis in TIME_AXES]
        rows.append({**metrics_of(run), **at[0], **at[1], **times_to_threshold(run, threshold)})
    values = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    used = {key: used_values(group.runs, key, each) for key, each in values.items()}
    estimates = {
        key: estimate(each, options.bootstrap, f"{group.name} | {key}") for key, each in used.items()
    }
    limits = score_range(group.env, group.runs[0].setting("env.distribution_mode"))
    normalised = {key: normalise(used[key], limits) for key in NORMALISED} if limits is not None else {}
    times = (
        {time_axis.key: threshold_result(group.runs, time_axis, threshold) for time_axis in TIME_AXES}
        if threshold is not None
        else {}
    )
    return GroupResult(group, values, estimates, normalised, times, used)


def _ratio(
    first: GroupResult, base: GroupResult | None, key: str, bootstrap: Bootstrap
) -> IntervalEstimate | None:
    """Return the ratio of a group's mean to the baseline's mean, with its interval."""
    if base is None:
        return None
    top, bottom = finite(first.used[key]), finite(base.used[key])
    if first is base and top.size and top.mean() > 0:
        return IntervalEstimate(1.0, None, None, None, top.size)
    return ratio_estimate(top, bottom, bootstrap, f"{first.group.name} / {base.group.name} | {key}")


def _pairs(results: Sequence[GroupResult], metric: str, bootstrap: Bootstrap) -> list[Pair]:
    couples = list(combinations(results, 2))
    tests = [welch(first.used[metric], second.used[metric]) for first, second in couples]
    adjusted = holm([None if test is None else test.p for test in tests])
    pairs, sign = [], BY_KEY[metric].better
    for (first, second), test, p in zip(couples, tests, adjusted):
        strata = [sign * finite(each.used[metric]) for each in (first, second)]
        counts = (strata[0].size, strata[1].size)
        labels = (first.group.label, second.group.label)
        better = improvement_estimate(
            strata, f"{' > '.join(labels)} | {first.group.env} | {metric}", bootstrap
        )
        pairs.append(Pair(metric, *labels, counts, test, p, better))
    return pairs


def over_games(games: Sequence[GameResult], bootstrap: Bootstrap) -> Across | None:
    """Compare normalised scores over the Procgen games that every variant played; None if there is none.

    If the games were played in several distribution modes, the mode with the most games counts.
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
    mixed = [
        [each for both in zip(known[first], known[second]) for each in both] for first, second in couples
    ]
    tests = [welch_over_games(strata) for strata in mixed]
    adjusted = holm([None if test is None else test.p for test in tests])
    pairs = []
    for (first, second), strata, test, p in zip(couples, mixed, tests, adjusted):
        counts = (sum(s.size for s in strata[::2]), sum(s.size for s in strata[1::2]))
        better = improvement_estimate(strata, f"{first} > {second} | {metric}", bootstrap)
        pairs.append(Pair(metric, first, second, counts, test, p, better))
    return pairs


def _strata(games: Sequence[GameResult], label: str, metric: str) -> list[Values]:
    """Return the normalised scores of a variant, one array per game."""
    return [
        finite(result.normalised[metric])
        for game in games
        for result in game.groups
        if result.group.label == label
    ]


def aggregate(strata: Sequence[Values], name: str, bootstrap: Bootstrap) -> Aggregate:
    """Return the interquartile mean over all runs of all games and the mean over games, with intervals.

    `strata` holds the scores (n,) of each game; the bootstrap resamples within each game.
    """
    n = sum(stratum.size for stratum in strata)

    def with_bootstrap(statistic: Statistic) -> IntervalEstimate:
        low, high = stratified_interval(strata, statistic, bootstrap, name) or (None, None)
        return IntervalEstimate(float(statistic(strata)), None, low, high, n)

    iqm = with_bootstrap(lambda drawn: interquartile_mean(pooled(drawn)))
    return Aggregate(iqm, with_bootstrap(mean_of_means))
