"""The tables of a comparison, with plain text in their cells; each output has its own layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlcb.comparison.analysis import Across, Aggregate, Comparison, GameResult, GroupResult, Pair
from rlcb.comparison.format import (
    MISSING,
    interval_text,
    p_text,
    reached_text,
    spread_text,
    value_text,
    window_text,
    with_interval,
)
from rlcb.comparison.metrics import (
    BY_KEY,
    DERIVED,
    METRICS,
    OF_WHOLE_RUNS,
    TIME_AXES,
    TO_THRESHOLD,
    Metric,
    ThresholdResult,
    score_metric,
)
from rlcb.comparison.procgen_scores import NORMALISATION
from rlcb.comparison.runs import as_number, dig
from rlcb.comparison.statistics import ENOUGH, IntervalEstimate
from rlcb.text import count_text, counted

MANY_PAIRS = 6  # with more pairs, tables show only those with the baseline; comparison.json has all
PHASES = ("env", "inference", "learn", "sync", "wait", "other")
TRIMMED = 4  # the interquartile mean of fewer scores is their mean


@dataclass
class Table:
    """A table: the first column holds the names of the rows, `header` those of the columns. A cell may have
    two lines."""

    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""
    aligned: bool = False
    """Whether all columns but the first are right-aligned; otherwise only columns of numbers are."""


def is_number_column(table: Table, index: int) -> bool:
    """Return whether a column is right-aligned because all of its cells start like numbers."""
    return index > 0 and (table.aligned or all(row[index][:1] in "0123456789-+<n" for row in table.rows))


OVERVIEW = ("average_fps", "speedup", "timesteps", "peak_memory_gb")  # rows below the returns
STATES = {"unfinished": "killed or running"}


def overview_table(game: GameResult) -> Table:
    """Return the few rows that the terminal shows by default: mean and 95 % interval of each group. Includes
    the groups that lost all seeds."""
    labels = [result.group.label for result in game.groups]
    table = Table(f"Results: {game.game}", ["", *labels, *(group.label for group in game.lost)])
    table.aligned = True
    if any(len(result.group.runs) > 1 for result in game.groups):
        table.note = "mean over seeds [95 % bootstrap interval of the mean]"
    empty = [MISSING] * len(game.lost)

    def add(name: str, cells: Sequence[str], lost: Sequence[str] = empty) -> None:
        table.rows.append([name, *cells, *lost])

    for key in filter(None, (game.evaluated, "return_at_wall_clock")):
        name = {"test_return": "Unseen levels", "full_return": "Evaluation"}.get(key, "Training return")
        add(name, [_short_cell(BY_KEY[key], result) for result in game.groups])
    for key in OVERVIEW:
        metric = BY_KEY[key]
        name = (
            f"{metric.title}, {metric.unit}" if metric.unit == "GB" else metric.title.removeprefix("Average ")
        )
        add(name, [_short_cell(metric, result) for result in game.groups])
    seeds = [f"{sum(run.completed for run in r.group.runs)} of {r.group.planned}" for r in game.groups]
    add("Seeds", seeds, [f"0 of {len(group.lost)}" for group in game.lost])
    states = [[STATES.get(r.status, r.status) for r in result.group.runs] for result in game.groups]
    states = [each + [run.state for run in r.group.lost] for each, r in zip(states, game.groups)]
    gone = [[run.state for run in group.lost] for group in game.lost]
    add("Status", [_counted(each) for each in states], [_counted(each) for each in gone])
    return table


def _counted(states: Sequence[str]) -> str:
    """Return states as `completed`, or with their numbers on a line each if there are several."""
    counts = Counter(states)
    return "\n".join(f"{n} {state}" for state, n in counts.items()) if len(counts) > 1 else states[0]


def _short_cell(metric: Metric, result: GroupResult) -> str:
    """Return mean and interval on two lines, with counts in short form and n if seeds are missing."""
    found = result.estimates[metric.key]
    if found is None:
        return MISSING
    if metric.key == "timesteps":
        return count_text(float(f"{found.mean:.3g}"))
    if metric.key == "average_fps":
        return f"{found.mean:,.0f}"
    n = f"n={found.n} of {result.group.planned}" if found.n != result.group.planned else ""
    parts = [value_text(metric, found.mean) + metric.unit * (metric.unit == "×")]
    parts += [interval_text(metric, found) if metric.key != "peak_memory_gb" else ""]
    return "\n".join(filter(None, [*parts, n if metric.key not in DERIVED and metric.better > 0 else ""]))


def results_table(game: GameResult) -> Table:
    """Return the metrics of a game, one column per group: mean ± standard deviation and 95 % interval."""
    note = "mean ± sample standard deviation over seeds; [95 % bootstrap interval of the mean]"
    table = Table(f"All metrics: {game.game}", ["", *(result.group.label for result in game.groups)])
    if not all(run.completed for result in game.groups for run in result.group.runs):
        note += "; metrics that grow with the length of a run use completed runs only (their number is n)"
    table.note = note
    seeds = [", ".join(str(run.seed) for run in result.group.runs) for result in game.groups]
    sizes = [(len(result.group.runs), result.group.planned) for result in game.groups]
    counts = [f"n={n}" if n == planned else f"n={n} of {planned}" for n, planned in sizes]
    table.rows.append(["Seeds (n)", *(f"{n}\n({each})" for n, each in zip(counts, seeds))])
    for metric in METRICS:
        if metric.key in TO_THRESHOLD:
            table.rows += _threshold_row(game, metric)
        elif any(result.estimates.get(metric.key) is not None for result in game.groups):
            table.rows.append([_row_name(game, metric), *(_cell(metric, result) for result in game.groups)])
    return table


def _row_name(game: GameResult, metric: Metric) -> str:
    """Return title and unit of a metric; for metrics at equal timesteps or wall clock, title and window."""
    for time_axis in TIME_AXES:
        window = game.windows[time_axis.key]
        if window is not None and metric.key in (f"return_at_{time_axis.key}", f"area_{time_axis.key}"):
            start = f"{window_text(time_axis, window.start)} to " if metric.key.startswith("area") else ""
            return f"{metric.title}\n({start}{window_text(time_axis, window.end)})"
    return f"{metric.title} ({metric.unit})" if metric.unit and metric.key not in DERIVED else metric.title


def _cell(metric: Metric, result: GroupResult) -> str:
    found = result.estimates[metric.key]
    text = spread_text(metric, found)
    interval = interval_text(metric, found) if metric.better else ""
    if found is not None and found.n != result.group.planned and metric.key not in DERIVED:
        text += f" (n={found.n} of {result.group.planned})"
    if found is not None and metric.key in OF_WHOLE_RUNS and not any(r.completed for r in result.group.runs):
        text += " (interrupted)"
    return f"{text}\n{interval}" if interval else text


def threshold_name(metric: Metric, found: ThresholdResult) -> str:
    """Return the title of a time to a threshold: `Time to a return of 8`."""
    return metric.title.replace("the threshold", f"a return of {found.threshold:g}")


def _threshold_row(game: GameResult, metric: Metric) -> list[list[str]]:
    """Return the row with the groups' median times to the threshold; no row without a threshold."""
    time_axis = TO_THRESHOLD[metric.key]
    found = [result.reached.get(time_axis.key) for result in game.groups]
    some = next((each for each in found if each is not None), None)
    if some is None:
        return []
    return [
        [f"{threshold_name(metric, some)}\n(median of seeds)", *(reached_text(time_axis, r) for r in found)]
    ]


def chosen_pairs(pairs: Sequence[Pair], baseline: str) -> list[Pair]:
    """Return the pairs that outputs for people show: all of a few groups, of many those with the baseline."""
    labels = {pair.first for pair in pairs} | {pair.second for pair in pairs}
    if len(labels) * (len(labels) - 1) / 2 <= MANY_PAIRS or baseline not in labels:
        return list(pairs)
    return [pair for pair in pairs if baseline in (pair.first, pair.second)]


def pairs_table(pairs: Sequence[Pair], title: str, baseline: str) -> Table:
    """Return the table of tests between groups; with many groups only the tests against the baseline."""
    header = ["First - second", "Difference [95 %]", "Welch's t", "p", "Holm's p"]
    header += ["P(first better) [95 %]", "n"]
    note = (
        "Welch's t-test, p also adjusted by Holm's method over all pairs of a metric; P: the probability "
        "that a run of the first is better than one of the second (lower is better for memory, gap and time "
        f"to a threshold), with an interval if both have {ENOUGH} runs and resamples differ; tests need two "
        "seeds in each group"
    )
    chosen = [pair for pair in chosen_pairs(pairs, baseline) if min(pair.counts) > 1]
    if len(chosen_pairs(pairs, baseline)) < len(pairs):
        note += f"; only pairs with {baseline} are shown, the JSON file has all"
    return Table(title, header, [_pair_row(pair) for pair in chosen], note)


def _pair_row(pair: Pair) -> list[str]:
    metric, test, better = BY_KEY[pair.metric], pair.welch, pair.improvement
    name = f"{metric.title}\n{pair.first} - {pair.second}"
    cells = [MISSING] * 4
    if test is not None:
        low, high = value_text(metric, test.low), value_text(metric, test.high)
        cells[0] = f"{value_text(metric, test.difference)}\n[{low}, {high}]"
        cells[1] = f"{test.t:.2f}\n(df {test.degrees:.1f})"
        cells[2], cells[3] = (
            p_text(p).removeprefix("p ").removeprefix("= ") for p in (test.p, pair.p_adjusted)
        )
    share = MISSING if better is None else with_interval(BY_KEY["final_reward"], better).replace(" ", "\n", 1)
    return [name, *cells, share, f"{pair.counts[0]}, {pair.counts[1]}"]


def across_table(comparison: Comparison) -> Table | None:
    """Return the table of Procgen-normalised scores over games, one column per group."""
    across = comparison.across
    if across is None:
        return None
    labels = list(dict.fromkeys(label for scores in across.scores.values() for label in scores))
    games = ", ".join(across.games)
    over = f" over {counted(len(across.games), 'game')} ({games})" if len(across.games) > 1 else f": {games}"
    table = Table(f"Procgen-normalised scores{over}", ["", *labels], note=_scores_note(across))
    runs = {
        label: max(scores[label].iqm.n for scores in across.scores.values() if label in scores)
        for label in labels
    }
    table.rows.append(["Runs (n)", *(f"n={runs[label]}" for label in labels)])
    for key, scores in across.scores.items():
        for name, at in (("IQM", 0), ("mean", 1)):
            if name == "IQM" and not _trims(scores):
                continue
            cells = [
                _score_cell(scores[label][at], runs[label]) if label in scores else MISSING
                for label in labels
            ]
            if any(cell != MISSING for cell in cells):
                table.rows.append([f"{BY_KEY[key].title}\n({name})", *cells])
    return table


def _trims(scores: Mapping[str, Aggregate]) -> bool:
    """Return whether a group has enough scores for an interquartile mean that differs from the mean."""
    return any(found.iqm.n >= TRIMMED for found in scores.values())


def _scores_note(across: Across) -> str:
    trims = [_trims(scores) for scores in across.scores.values() if scores]
    parts = ["IQM: mean of the middle half of all runs"] if any(trims) else []
    parts.append("mean: of the games' means" if len(across.games) > 1 else "mean: over runs")
    if not all(trims):
        parts.append(f"the interquartile mean of fewer than {TRIMMED} runs is their mean, and left out")
    parts.append("[95 % interval, runs resampled within each game]")
    return "; ".join([*parts, f"0 is no skill, 1 the maximum, by the ranges of {NORMALISATION}"])


def _score_cell(found: IntervalEstimate, runs: int) -> str:
    metric = score_metric("final_reward")
    lines = [value_text(metric, found.mean) + (f" (n={found.n})" if found.n != runs else "")]
    return "\n".join(filter(None, [*lines, interval_text(metric, found)]))


def phase_shares(result: GroupResult) -> dict[str, float] | None:
    """Return the share of each phase in the training time, averaged over runs; None if none was recorded."""
    found = [each for run in result.group.runs if isinstance(each := run.record.get("time_breakdown"), dict)]
    names = list(dict.fromkeys([*PHASES, *(str(name) for each in found for name in each)]))
    if not found:
        return None
    shares = {
        name: float(np.mean([np.nan_to_num(as_number(dig(each, f"{name}.share"))) for each in found]))
        for name in names
    }
    return {name: share for name, share in shares.items() if share > 0 or name in PHASES}


def phases_table(game: GameResult) -> Table | None:
    """Return the table of time shares by group and phase; None if no run recorded them."""
    found = {result.group.label: shares for result in game.groups if (shares := phase_shares(result))}
    if not found:
        return None
    names = list(dict.fromkeys(name for shares in found.values() for name in shares))
    rows = [[label, *(f"{shares.get(name, 0):.1%}" for name in names)] for label, shares in found.items()]
    note = "shares of wall clock, mean over runs"
    return Table(f"Where the time went: {game.game}", ["Group", *names], rows, note)


def runs_table(comparison: Comparison) -> Table:
    """Return the table of single runs."""
    header = ["Run", "Group", "Game", "Seed", "Status", "Hours", "Timesteps", "FPS", "Final reward", "Notes"]
    table = Table("Runs", header)
    for result in comparison.results:
        for index, run in enumerate(result.group.runs):
            figures = {
                key: value_text(BY_KEY[key], float(result.values[key][index]))
                for key in ("duration_hours", "timesteps", "average_fps", "final_reward")
            }
            about = [run.path.name, result.group.label, result.group.game, str(run.seed), run.status]
            table.rows.append([*about, *figures.values(), "; ".join(run.notes)])
    return table
