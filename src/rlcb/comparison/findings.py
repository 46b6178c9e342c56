"""Findings of a comparison: sentences that name a winner only if a test confirms it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlcb.comparison.analysis import Comparison, GameResult, Pair
from rlcb.comparison.format import p_text, window_text, with_interval
from rlcb.comparison.metrics import BY_KEY, TIME_AXES
from rlcb.comparison.statistics import ENOUGH, IntervalEstimate, rising
from rlcb.rl.statistics import WINDOW

SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Ranking:
    """The group with the best mean of a metric, and the groups that it significantly exceeds."""

    metric: str
    leader: str
    margin: float | None
    """Distance between the means of the leader and the runner-up; None for a single group."""
    runner_up: str | None
    beaten: tuple[tuple[str, float], ...]
    """(label, adjusted p) of the groups that the leader significantly exceeds."""
    open: tuple[str, ...]
    """Groups without a significant difference from the leader."""
    untested: tuple[str, ...]
    """Groups without a test: one seed on either side, or no variance."""
    tied: tuple[str, ...]
    """Groups with exactly the leader's mean."""
    missing: tuple[str, ...] = ()
    """Groups without a value of this metric."""

    @property
    def won(self) -> bool:
        """Whether the leader significantly exceeds every other group that has a value."""
        return bool(self.beaten) and not self.open and not self.untested


def rank(
    metric: str, means: dict[str, float], pairs: Sequence[Pair], better: int = 1, labels: Sequence[str] = ()
) -> Ranking | None:
    """Rank the groups by one metric; None if there is no mean.

    `means` is by label, `pairs` are the tests of this metric, and `labels` are all groups, also those without
    a mean. `better` is 1 if higher is better, else -1.
    """
    if not means:
        return None
    leader = max(means, key=lambda label: better * means[label])
    others = sorted((label for label in means if label != leader), key=lambda label: -better * means[label])
    beaten, still_open, untested = [], [], []
    for label in others:
        pair = next((p for p in pairs if {p.first, p.second} == {leader, label}), None)
        if pair is None or pair.p_adjusted is None:
            untested.append(label)
        elif pair.p_adjusted < SIGNIFICANCE:
            beaten.append((label, pair.p_adjusted))
        else:
            still_open.append(label)
    margin = abs(means[leader] - means[others[0]]) if others else None
    tied = tuple(label for label in others if means[label] == means[leader])
    missing = tuple(label for label in labels if label not in means)
    runner_up = others[0] if others else None
    groups = (tuple(beaten), tuple(still_open), tuple(untested), tied, missing)
    return Ranking(metric, leader, margin, runner_up, *groups)


def rank_in_game(game: GameResult, metric: str) -> Ranking | None:
    """Rank the groups of one game by a metric; None if no group has a value."""
    found = {result.group.label: result.estimates.get(metric) for result in game.groups}
    means = {label: each.mean for label, each in found.items() if each is not None}
    pairs = [pair for pair in game.pairs if pair.metric == metric]
    return rank(metric, means, pairs, BY_KEY[metric].better or 1, list(found))


def rank_over_games(comparison: Comparison, metric: str) -> Ranking | None:
    """Rank the variants by the mean over games of a normalised score, which is the tested quantity."""
    if comparison.across is None:
        return None
    means = {label: each.mean.mean for label, each in comparison.across.scores[metric].items()}
    pairs = [pair for pair in comparison.across.pairs if pair.metric == metric]
    return rank(metric, means, pairs, labels=comparison.labels)


class Finding(NamedTuple):
    """One result in words: the place (game and time axis), the claim, and the numbers behind it."""

    place: str
    claim: str
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {self.claim}.{f' {self.detail}' if self.detail else ''}"


def findings(comparison: Comparison) -> list[Finding]:
    """Return all findings: over games, then for each game at equal wall clock and equal timesteps, then
    speed."""
    found = []
    if comparison.across is not None and len(comparison.across.games) > 1:
        for time_axis in reversed(TIME_AXES):
            found += _over_games(comparison, f"return_at_{time_axis.key}", time_axis.title)
    for game in comparison.games:
        for time_axis in reversed(TIME_AXES):
            metric, window = f"return_at_{time_axis.key}", game.windows[time_axis.key]
            ranking = rank_in_game(game, metric)
            if ranking is None or window is None:
                found.append(Finding(f"{game.game}, {time_axis.title}", "no return can be compared", ""))
                continue
            place = f"{game.game}, {time_axis.title} ({window_text(time_axis, window.end)})"
            estimates = {result.group.label: result.estimates[metric] for result in game.groups}
            sizes = {result.group.label: len(result.group.runs) for result in game.groups}
            found.append(finding(place, "return", ranking, estimates, sizes))
    return [*found, *(_speed(game, comparison.baseline) for game in comparison.games)]


def headline(comparison: Comparison) -> list[str]:
    """Return the findings as sentences."""
    return [str(each) for each in findings(comparison)]


def _over_games(comparison: Comparison, metric: str, title: str) -> list[Finding]:
    ranking = rank_over_games(comparison, metric)
    if ranking is None or comparison.across is None:
        return []
    estimates = {label: each.mean for label, each in comparison.across.scores[metric].items()}
    sizes: dict[str, int] = {}
    for game in comparison.games:
        for result in game.groups if game.game in comparison.across.games else []:
            sizes[result.group.label] = sizes.get(result.group.label, 0) + len(result.group.runs)
    place = f"Over {len(comparison.across.games)} games, {title}"
    return [finding(place, "normalised score", ranking, dict(estimates), sizes)]


def finding(
    place: str,
    what: str,
    ranking: Ranking,
    estimates: Mapping[str, IntervalEstimate | None],
    sizes: Mapping[str, int],
) -> Finding:
    """Put a ranking into words that claim no more than its tests show.

    `sizes` holds the number of runs of each group, to show how many runs have no value.
    """

    def named(label: str) -> str:
        return f"{label} ({figure(label)})"

    def figure(label: str) -> str:
        found = estimates[label]
        if found is None:
            return ""
        n = f"n={found.n}" if found.n == sizes[label] else f"n={found.n} of {sizes[label]}"
        return f"{with_interval(BY_KEY[ranking.metric], found)}, {n}"

    without = _without(ranking.missing)
    if ranking.runner_up is None:
        detail = f"Mean {what} {figure(ranking.leader)}{without}."
        return Finding(place, f"only {ranking.leader} has a value", detail)
    if ranking.tied:
        equal = _listed([named(label) for label in (ranking.leader, *ranking.tied)])
        return Finding(place, "no winner", f"{equal} have the same mean {what}{without}.")
    among = f" of the {len(ranking.beaten) + 1} groups with a value" if ranking.missing else ""
    claim = (
        f"{ranking.leader} is best{among}" if ranking.won else f"no clear winner; {ranking.leader} is ahead"
    )
    parts = []
    if ranking.beaten:
        largest_p = max(p for _, p in ranking.beaten)
        parts.append(
            f"higher than {_listed([named(label) for label, _ in ranking.beaten])} ({p_text(largest_p)})"
        )
    if ranking.open:
        parts.append(f"not distinguishable from {_listed([named(label) for label in ranking.open])}")
    if ranking.untested:
        names = _listed([named(label) for label in ranking.untested])
        parts.append(f"no test against {names}: a test needs two seeds each and some variance")
    return Finding(place, claim, f"Mean {what} {figure(ranking.leader)}; {'; '.join(parts)}{without}.")


def _without(labels: Sequence[str]) -> str:
    return f"; no value for {_listed(labels)}" if labels else ""


def _listed(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _speed(game: GameResult, baseline: str) -> Finding:
    """Return the finding about speed: the fastest group compared with the baseline."""
    place, metric = f"{game.game}, speed", BY_KEY["speedup"]
    known = [(result, each) for result in game.groups if (each := result.estimates["speedup"]) is not None]
    if not known:
        fastest = rank_in_game(game, "average_fps")
        claim = f"{fastest.leader} was fastest" if fastest else "not recorded"
        return Finding(place, claim, f"{baseline}, the baseline, has no value in this game.")
    absent = [result.group.label for result in game.groups if result.estimates["speedup"] is None]
    without = _without(absent)
    result, best = max(known, key=lambda pair: pair[1].mean)
    label = result.group.label
    if label == baseline:
        others = "no group is" if len(game.groups) > 1 else "there is no group"
        detail = f"No value for {_listed(absent)}." if absent else ""
        return Finding(place, f"{others} faster than {baseline}", detail)
    pairs = [each for each in game.pairs if each.metric == "average_fps"]
    pair = next(each for each in pairs if {each.first, each.second} == {label, baseline})
    runs = "one run each" if max(pair.counts) < 2 else f"n={pair.counts[0]} and {pair.counts[1]}"
    factor = with_interval(metric, best)
    detail = f"{factor} the timesteps per second of {baseline} ({runs})"
    if pair.p_adjusted is None:
        return Finding(place, f"{label} was fastest", f"{detail}; no test is possible{without}.")
    p = p_text(pair.p_adjusted)
    if pair.p_adjusted < SIGNIFICANCE:
        return Finding(place, f"{label} is faster than {baseline}", f"{detail}, {p}{without}.")
    claim = f"no clear difference; {label} is ahead"
    return Finding(place, claim, f"{detail}; not distinguishable from equal speed ({p}){without}.")


def data_warnings(comparison: Comparison) -> list[str]:
    """Return warnings about results that rest on few seeds or few episodes."""
    found = _early(comparison)
    smallest = min(len(result.group.runs) for result in comparison.results)
    if smallest < 2:
        found.append(
            "Some groups have one seed: they have no standard deviation and no interval, and a difference "
            "from them can be chance."
        )
    if any(2 <= len(result.group.runs) < ENOUGH for result in comparison.results):
        found.append(
            f"With fewer than {ENOUGH} seeds, bootstrap intervals are too narrow; claims here rest on "
            f"Welch's test, adjusted by Holm's method, at p < {SIGNIFICANCE}."
        )
    return found


def _early(comparison: Comparison) -> list[str]:
    """Return a warning if returns are compared where runs had finished fewer than 100 episodes."""
    few = []
    for game, result in [(each, result) for each in comparison.games for result in each.groups]:
        windows = game.windows
        for run in result.group.runs:
            x, episodes = rising(run.series["timesteps"], run.series["rollout/episodes"])
            window = windows["timesteps"]
            if (
                window is not None
                and x.size
                and window.end >= x[0]
                and np.interp(window.end, x, episodes) < WINDOW
            ):
                few.append(run.path.name)
    if not few:
        return []
    return [
        f"At equal timesteps {_listed(few)} had finished fewer than {WINDOW} episodes: returns are means of "
        "few episodes, and short ones finish first."
    ]
