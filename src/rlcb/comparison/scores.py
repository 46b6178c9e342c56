"""Scores of runs over games: tables for rliable, performance profiles and probabilities of improvement.

After Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice". Scores are
Procgen-normalised over all games that every group played. One game without a published range is compared in
raw returns; several such games have no common scale, so they have no scores here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlcb.comparison.analysis import Comparison, GameResult, Pair
from rlcb.comparison.curves import POINTS, GroupCurve, Panel, curve_data
from rlcb.comparison.forest import ForestRow
from rlcb.comparison.format import round_ticks, with_interval
from rlcb.comparison.metrics import BY_KEY, NORMALISED, TimeAxis
from rlcb.comparison.statistics import ENOUGH, IntervalEstimate, Values, band
from rlcb.comparison.tables import Table, chosen_pairs
from rlcb.text import counted, tick_text

SHOWN = ("test_return", "full_return", "return_at_wall_clock")
"""The metric of the profiles: the first that every group has in every game."""
BAND_RUNS = 10  # runs of a group over all games; with fewer, a band covers half of the plot
RunKey = tuple[int | None, int]
"""A seed, and the number of earlier runs of its group with this seed."""


class Scores(NamedTuple):
    """The scores of all runs in one metric, by group: for each of `games` a score by run."""

    metric: str
    unit: str
    games: list[str]
    groups: dict[str, list[dict[RunKey, float]]]

    def strata(self, label: str) -> list[Values]:
        """Return the scores of a group, an array (runs,) for each game."""
        return [np.array(list(game.values())) for game in self.groups[label]]


def scored_games(comparison: Comparison) -> list[GameResult]:
    """Return the games that have one scale: those of the normalised scores, or else the only game."""
    across = comparison.across
    if across is not None:
        return [game for game in comparison.games if game.game in across.games]
    return comparison.games if len(comparison.games) == 1 else []


def scores_in(comparison: Comparison, metric: str) -> Scores:
    """Return the scores in a metric. A group without a score in a game is left out."""
    games, groups = scored_games(comparison), {}
    labels = dict.fromkeys(result.group.label for game in games for result in game.groups)
    for label in labels:
        runs = [_of_runs(game, label, metric, comparison.across is not None) for game in games]
        if all(runs):
            groups[label] = runs
    unit = "raw return" if comparison.across is None else "normalised score"
    return Scores(metric, unit, [game.game for game in games], groups)


def _of_runs(game: GameResult, label: str, metric: str, normalised: bool) -> dict[RunKey, float]:
    """Return the finite scores of a group's runs in one game."""
    result = next(each for each in game.groups if each.group.label == label)
    values = (result.normalised if normalised else result.used).get(metric, np.empty(0))
    found: dict[RunKey, float] = {}
    seen: Counter[int | None] = Counter()
    for run, value in zip(result.group.runs, values.tolist()):
        if np.isfinite(value):
            found[run.seed, seen[run.seed]] = value
        seen[run.seed] += 1
    return found


def shown_scores(comparison: Comparison) -> Scores | None:
    """Return the scores of the first metric in SHOWN that every group has; None if there is none."""
    labels = {result.group.label for game in scored_games(comparison) for result in game.groups}
    found = [scores_in(comparison, metric) for metric in SHOWN]
    return next((each for each in found if labels and each.groups.keys() == labels), None)


def rliable_data(comparison: Comparison) -> dict[str, Any] | None:
    """Return the scores in rliable's form: for each metric a table (runs x games) by group.

    rliable needs rectangular tables, so a table has a row for each seed that has a score in every game;
    `left_out` lists the other seeds by group and game. None if the games have no common scale.
    """
    metrics = [scores_in(comparison, metric) for metric in NORMALISED]
    if not metrics[0].games:
        return None
    data: dict[str, Any] = {"games": metrics[0].games, "unit": metrics[0].unit, "scores": {}, "left_out": {}}
    for scores in metrics:
        tables: dict[str, list[list[float]]] = {}
        left_out: dict[str, dict[str, list[int | None]]] = {}
        for label, games in scores.groups.items():
            common = [key for key in games[0] if all(key in game for game in games)]
            if common:
                tables[label] = [[game[key] for game in games] for key in common]
            for name, game in zip(scores.games, games):
                if left := sorted((seed for seed, _ in game.keys() - set(common)), key=str):
                    left_out.setdefault(label, {})[name] = left
        data["scores"] |= {scores.metric: tables} if tables else {}
        data["left_out"] |= {scores.metric: left_out} if left_out else {}
    return data


def profile_panel(comparison: Comparison) -> Panel | None:
    """Return the performance profiles: the share of runs with a score above each of POINTS values.

    The share is the mean over games of each game's share. Bands are pointwise stratified bootstraps, for
    groups with at least BAND_RUNS runs. None if there are no scores.
    """
    scores = shown_scores(comparison)
    if scores is None:
        return None
    every = np.concatenate([each for label in scores.groups for each in scores.strata(label)])
    low, high = float(every.min()), float(every.max())
    margin = 0.04 * ((high - low) or 1.0)
    axis = TimeAxis("score", "", "", f"{scores.unit} τ", 1.0)
    grid = np.linspace(low - margin, high + margin, POINTS)
    title = f"Share of runs above τ: {BY_KEY[scores.metric].title.lower()}"
    return Panel("profile", title, _place(scores), axis, grid, _profiles(comparison, scores, grid))


def _profiles(comparison: Comparison, scores: Scores, grid: Values) -> list[GroupCurve]:
    curves = []
    for label in scores.groups:
        tables = [(each[:, None] > grid).astype(np.float64) for each in scores.strata(label)]
        found = band(tables, comparison.options.bootstrap, f"{label} | profile | {scores.metric}")
        if sum(map(len, tables)) < BAND_RUNS:
            found = found._replace(low=np.full_like(grid, np.nan), high=np.full_like(grid, np.nan))
        planned = min(game.planned[label] for game in scored_games(comparison))
        curves.append(GroupCurve(label, planned, found, [], found, []))
    return curves


def _place(scores: Scores) -> str:
    games = scores.games
    return games[0] if len(games) == 1 else f"over {len(games)} games"


def profile_table(comparison: Comparison) -> Table | None:
    """Return the performance profiles at a few round scores; None if there are no scores."""
    panel, scores = profile_panel(comparison), shown_scores(comparison)
    if panel is None or scores is None:
        return None
    taus = np.array(round_ticks(float(panel.grid[0]), float(panel.grid[-1]), 8))
    curves = _profiles(comparison, scores, taus)
    percent = BY_KEY["average_cpu_percent"]._replace(digits=0)
    table = Table(f"{panel.title}, {panel.unit}", [f"τ, {scores.unit}", *(each.label for each in curves)])
    for index, tau in enumerate(taus):
        cells = []
        for curve in curves:
            mean, low, high = (100 * float(each[index]) for each in curve.band[:3])
            found = IntervalEstimate(mean, None, low, high, int(curve.band.n[index]))
            found = found if low < high else found._replace(low=None, high=None)  # no claim of certainty
            cells.append(with_interval(percent, found).replace(" ", "\n", 1))
        table.rows.append([tick_text(float(tau), taus), *cells])
    table.note, table.aligned = profile_note(scores), True
    return table


def profile_note(scores: Scores) -> str:
    """Return how to read the profiles, and what few runs mean for them."""
    counts = [[len(stratum) for stratum in scores.strata(label)] for label in scores.groups]
    fewest, total = min(map(min, counts)), min(map(sum, counts))
    note = "share of runs whose score exceeds τ; a higher curve is better"
    if total < BAND_RUNS or fewest == 1:
        need = f"a band needs {BAND_RUNS} runs of a group over all games, and two in each"
        return f"{note}; with {counted(total, 'run')} it moves in steps of {1 / total:.0%}; {need}"
    note += "; [95 % bootstrap band, pointwise, runs resampled within each game]"
    if fewest < ENOUGH:
        note += f"; with {fewest} runs a game, bands are too narrow"
    return note


def improvement_rows(comparison: Comparison) -> list[ForestRow]:
    """Return the probabilities of improvement in the metric of the profiles, the better group first."""
    scores = shown_scores(comparison)
    if scores is None:
        return []
    several = comparison.across is not None and len(comparison.across.games) > 1
    pairs = comparison.across.pairs if several and comparison.across else scored_games(comparison)[0].pairs
    return [
        _improvement_row(pair)
        for pair in chosen_pairs(pairs, comparison.baseline)
        if pair.metric == scores.metric and pair.improvement is not None
    ]


def _improvement_row(pair: Pair) -> ForestRow:
    found = pair.improvement
    assert found is not None
    names = [pair.first, pair.second]
    if found.mean < 0.5:
        low, high = (None if end is None else 1 - end for end in (found.high, found.low))
        found, names = IntervalEstimate(1 - found.mean, None, low, high, found.n), names[::-1]
    text = with_interval(BY_KEY["final_reward"], found)
    return ForestRow(
        " > ".join(names), np.empty(0), found, f"{text}, n={' and '.join(map(str, pair.counts))}"
    )


def improvement_note(rows: Sequence[ForestRow]) -> str:
    """Return how to read the probabilities of improvement."""
    note = "P(X > Y): probability that a run of X returns more than a run of Y, ties counted as one half; "
    note += "0.5 means no difference"
    if any(row.found is not None and row.found.low is None for row in rows):
        note += f"; an interval needs {ENOUGH} runs of both groups in each game, and resamples that differ"
    return note


def scores_data(comparison: Comparison) -> dict[str, Any]:
    """Return what comparison.json holds about scores: `rliable` and `performance_profile`."""
    panel = profile_panel(comparison)
    return {
        "rliable": rliable_data(comparison),
        "performance_profile": None if panel is None else curve_data(panel),
    }
