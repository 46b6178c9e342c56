"""Findings of a comparison: sentences that name a winner only if a test confirms it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlcb.comparison import rounds
from rlcb.comparison.analysis import Comparison, GameResult, Pair
from rlcb.comparison.fairness import TOLERANCE
from rlcb.comparison.format import listed, p_text, window_text, with_interval
from rlcb.comparison.metrics import BY_KEY, EVALUATIONS, TIME_AXES, score_metric
from rlcb.comparison.runs import as_number, dig
from rlcb.comparison.sequential_test import Decision
from rlcb.comparison.statistics import IntervalEstimate, finite
from rlcb.comparison.warnings import SIGNIFICANCE
from rlcb.config.games import procgen_game
from rlcb.rl.statistics import WINDOW
from rlcb.text import counted, duration_text

SCORE = "normalised score"


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
    return rank(metric, means, pairs, BY_KEY[metric].better or 1, list(game.planned))


def rank_over_games(comparison: Comparison, metric: str) -> Ranking | None:
    """Rank the variants by the mean over games of a normalised score, which is the tested quantity."""
    if comparison.across is None:
        return None
    means = {label: each.mean.mean for label, each in comparison.across.scores[metric].items()}
    pairs = [pair for pair in comparison.across.pairs if pair.metric == metric]
    return rank(metric, means, pairs, labels=comparison.labels)


Estimates = Mapping[str, IntervalEstimate | None]


class Finding(NamedTuple):
    """One result in words: the place (game and time axis), the claim, the numbers behind it, the runs and
    episodes that it rests on, and a caution if seeds are missing."""

    place: str
    claim: str
    detail: str
    basis: str = ""
    caution: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.place}: {self.claim}.", self.detail, self.basis, self.caution]))


def findings(comparison: Comparison) -> list[Finding]:
    """Return all findings: over games, then for each game, then speed.

    The return on unseen levels at the end of training comes first, then the training return at equal wall
    clock and at equal timesteps.
    """
    found = []
    if comparison.across is not None and len(comparison.across.games) > 1:
        found += _over_games(comparison, "test_return", "unseen levels")
        for time_axis in reversed(TIME_AXES):
            found += _over_games(comparison, f"return_at_{time_axis.key}", f"training at {time_axis.title}")
    for game in comparison.games:
        found += _of_evaluations(game, game.decision(comparison.options))
        for time_axis in reversed(TIME_AXES):
            metric, window = f"return_at_{time_axis.key}", game.windows[time_axis.key]
            ranking = rank_in_game(game, metric)
            place = f"{game.game}, training at {time_axis.title}"
            if ranking is None or window is None:
                found.append(Finding(place, "no return can be compared", ""))
                continue
            place += f" ({window_text(time_axis, window.end)})"
            episodes = f"the last {WINDOW} episodes of each"
            found.append(
                finding(place, "return", ranking, estimates_of(game, metric), game.planned, episodes)
            )
    return [*found, *(_speed(game, comparison.baseline) for game in comparison.games)]


def headline(comparison: Comparison) -> list[str]:
    """Return the findings as sentences."""
    return [str(each) for each in findings(comparison)]


def estimates_of(game: GameResult, metric: str) -> Estimates:
    """Return the estimates of a metric by group."""
    return {result.group.label: result.estimates[metric] for result in game.groups}


def _of_evaluations(game: GameResult, decision: Decision | None) -> list[Finding]:
    """Return the finding about the evaluations of the final checkpoints; none without evaluations.

    It is that of the sequential test if the study added seeds in rounds.
    """
    ranking = rank_in_game(game, game.evaluated) if game.evaluated else None
    if ranking is None:
        return []
    place = f"{game.game}, {evaluated_on(game)} after {effort(game)[0]}"
    estimates = estimates_of(game, ranking.metric)
    tested = finding(place, "return", ranking, estimates, game.planned, f"{episodes_of(game)} a seed")
    if decision is None:
        return [tested]
    figures = [
        f"{label} {with_interval(BY_KEY[ranking.metric], each)}, n={each.n}"
        for label, each in estimates.items()
        if each is not None
    ]
    parts = [rounds.lead(decision), rounds.put_out(decision), f"means: {'; '.join(figures)}"]
    detail = "; ".join(filter(None, parts))
    return [tested._replace(claim=rounds.claim(decision), detail=f"{detail[0].upper()}{detail[1:]}.")]


def evaluated_on(game: GameResult) -> str:
    """Return what the evaluations of a game played: unseen levels, all levels, or `evaluation`."""
    if procgen_game(game.groups[0].group.env) is None:
        return "evaluation"
    return EVALUATIONS[game.evaluated or "test_return"]


def episodes_of(game: GameResult) -> str:
    """Return the number of evaluation episodes on each set of levels: `50 episodes`, `20 to 50 episodes`."""
    split = {"test_return": "test", "full_return": "full"}[game.evaluated or "test_return"]
    runs = [run for result in game.groups for run in result.group.runs]
    found = [as_number(dig(run.evaluation, f"splits.{split}.episodes")) for run in runs]
    known = sorted(int(each) for each in found if each == each)
    if not known:
        return "an unknown number of episodes"
    return counted(known[-1], "episode") if known[0] == known[-1] else f"{known[0]} to {known[-1]} episodes"


def effort(game: GameResult) -> tuple[str, bool]:
    """Return the budget that the runs of a game used, and whether all used the same.

    The text is `10.0 minutes`, or `1M timesteps` if only the timesteps are equal, or the range of times.
    """
    runs = [run for result in game.groups for run in result.group.runs]
    runs = [run for run in runs if run.completed] or runs

    hours, timesteps = (
        finite([run.number(key) for run in runs]) for key in ("duration_hours", "total_timesteps")
    )
    if not hours.size or not timesteps.size:
        return "an unrecorded time", False
    low, high, least, most = hours.min(), hours.max(), timesteps.min(), timesteps.max()
    if high - low <= TOLERANCE * high:
        return duration_text(1800 * (low + high)), True
    if most - least <= TOLERANCE * most:
        return window_text(TIME_AXES[0], most), True
    return f"{duration_text(3600 * low)} to {duration_text(3600 * high)}", False


def seeds_text(counts: Sequence[int], over_games: bool = False) -> str:
    """Return numbers of seeds as `3 seeds each`, `3 seeds` (one group), `4 and 2 seeds` or `2 to 4 seeds`.

    Over several games they are numbers of runs: a seed has a run in each game.
    """
    noun = "run" if over_games else "seed"
    low, high = min(counts), max(counts)
    if low != high:
        return f"{counts[0]} and {counts[1]} {noun}s" if len(counts) == 2 else f"{low} to {high} {noun}s"
    return counted(low, noun) + (" each" if len(counts) > 1 else "")


def _over_games(comparison: Comparison, metric: str, title: str) -> list[Finding]:
    ranking = rank_over_games(comparison, metric)
    if ranking is None or comparison.across is None:
        return []
    estimates = scores_of(comparison, metric)
    place = f"Over {len(comparison.across.games)} games, {title}"
    games = f"on {listed(comparison.across.games)}"
    return [finding(place, SCORE, ranking, estimates, planned_over_games(comparison), games)]


def scores_of(comparison: Comparison, metric: str) -> Estimates:
    """Return the means over games of a normalised score by variant; None for variants without a value."""
    scores = comparison.across.scores[metric] if comparison.across is not None else {}
    return {label: scores[label].mean if label in scores else None for label in comparison.labels}


def planned_over_games(comparison: Comparison) -> dict[str, int]:
    """Return the number of runs that each variant should have in the games with scores."""
    sizes: dict[str, int] = {}
    for game in comparison.games:
        if comparison.across is not None and game.game in comparison.across.games:
            for label, planned in game.planned.items():
                sizes[label] = sizes.get(label, 0) + planned
    return sizes


def finding(
    place: str, what: str, ranking: Ranking, estimates: Estimates, planned: Mapping[str, int], episodes: str
) -> Finding:
    """Put a ranking into words that claim no more than its tests show.

    `planned` holds the number of runs that each group should have, and `episodes` says what each value is of.
    """

    metric = score_metric(ranking.metric) if what == SCORE else BY_KEY[ranking.metric]

    def named(label: str) -> str:
        return f"{label} ({figure(label)})"

    def figure(label: str) -> str:
        found = estimates.get(label)
        if found is None:
            return ""
        n = f"n={found.n}" if found.n == planned[label] else f"n={found.n} of {planned[label]}"
        return f"{with_interval(metric, found)}, {n}"

    seeds = seeds_text([each.n for each in estimates.values() if each is not None], over_games=what == SCORE)
    basis, caution = f"Rests on {seeds}, {episodes}.", missing_seeds(estimates, planned)
    without = _without(ranking.missing)
    if ranking.runner_up is None:
        detail = f"Mean {what} {figure(ranking.leader)}{without}."
        return Finding(place, f"only {ranking.leader} has a value", detail, basis, caution)
    if ranking.tied:
        equal = listed([named(label) for label in (ranking.leader, *ranking.tied)])
        return Finding(place, "no winner", f"{equal} have the same mean {what}{without}.", basis, caution)
    among = f" of the {len(ranking.beaten) + 1} groups with a value" if ranking.missing else ""
    claim = (
        f"{ranking.leader} is best{among}" if ranking.won else f"no clear winner; {ranking.leader} is ahead"
    )
    parts = []
    if ranking.beaten:
        largest_p = max(p for _, p in ranking.beaten)
        parts.append(
            f"higher than {listed([named(label) for label, _ in ranking.beaten])} ({p_text(largest_p)})"
        )
    if ranking.open:
        parts.append(f"not distinguishable from {listed([named(label) for label in ranking.open])}")
    if ranking.untested:
        names = listed([named(label) for label in ranking.untested])
        parts.append(f"no test against {names}: a test needs two seeds each and some variance")
    detail = f"Mean {what} {figure(ranking.leader)}; {'; '.join(parts)}{without}."
    return Finding(place, claim, detail, basis, caution)


def missing_seeds(estimates: Estimates, planned: Mapping[str, int]) -> str:
    """Return the caution that names the groups with fewer seeds than planned; empty if there are none.

    Groups that have runs but no value of this metric (None in `estimates`) are not counted.
    """
    counts = {label: each.n for label, each in estimates.items() if each is not None}
    counts |= {label: 0 for label in planned if label not in estimates}
    short = [f"{label} has {n} of {planned[label]}" for label, n in counts.items() if n < planned[label]]
    return f"Lost seeds bias this: {listed(short)}." if short else ""


def _without(labels: Sequence[str]) -> str:
    return f"; no value for {listed(labels)}" if labels else ""


def _speed(game: GameResult, baseline: str) -> Finding:
    """Return the finding about speed: the fastest group compared with the baseline."""
    place, metric = f"{game.game}, speed", BY_KEY["speedup"]
    fps = estimates_of(game, "average_fps")
    caution = missing_seeds(fps, game.planned)
    known = [(result, each) for result in game.groups if (each := result.estimates["speedup"]) is not None]
    if not known:
        fastest = rank_in_game(game, "average_fps")
        claim = f"{fastest.leader} was fastest" if fastest else "not recorded"
        detail = f"{baseline}, the baseline, has no value in this game."
        return Finding(place, claim, detail, "", caution)
    absent = [label for label in game.planned if label not in [r.group.label for r, _ in known]]
    without = _without(absent)
    result, best = max(known, key=lambda pair: pair[1].mean)
    label = result.group.label
    basis = f"Rests on {seeds_text([each.n for each in fps.values() if each is not None])}."
    if label == baseline:
        others = "no group is" if len(game.groups) > 1 else "there is no group"
        detail = f"No value for {listed(absent)}." if absent else ""
        return Finding(place, f"{others} faster than {baseline}", detail, basis, caution)
    pairs = [each for each in game.pairs if each.metric == "average_fps"]
    pair = next(each for each in pairs if {each.first, each.second} == {label, baseline})
    detail = f"{with_interval(metric, best)} the timesteps per second of {baseline}"
    if pair.p_adjusted is None:
        detail += f"; no test is possible{without}."
        return Finding(place, f"{label} was fastest", detail, basis, caution)
    p = p_text(pair.p_adjusted)
    if pair.p_adjusted < SIGNIFICANCE:
        claim, detail = f"{label} is faster than {baseline}", f"{detail}, {p}{without}."
    else:
        claim = f"no clear difference; {label} is ahead"
        detail = f"{detail}; not distinguishable from equal speed ({p}){without}."
    return Finding(place, claim, detail, basis, caution)
