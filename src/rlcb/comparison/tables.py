"""The tables of a comparison, as plain text in cells; how they are laid out is for each output to say."""

from __future__ import annotations

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
)
from rlcb.comparison.procgen_scores import NORMALISATION
from rlcb.comparison.runs import as_number, dig
from rlcb.comparison.statistics import ENOUGH, IntervalEstimate
from rlcb.text import counted

MANY_PAIRS = 6  # beyond that texts show only those with the baseline; comparison.json has all
PHASES = ("env", "inference", "learn", "sync", "wait", "other")
TRIMMED = 4  # scores from which on an interquartile mean leaves some out


@dataclass
class Table:
    """`header` names the columns; the first one names the rows. A cell may have a second line."""

    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""


def is_number_column(table: Table, index: int) -> bool:
    """Whether a column is aligned to the right: all of its cells begin like figures."""
    return index > 0 and all(row[index][:1] in "0123456789-+<n" for row in table.rows)


def results_table(game: GameResult) -> Table:
    """Every figure as mean ± sample standard deviation, below it the 95 % interval; a column for a group."""
    note = "mean ± sample standard deviation over seeds; [95 % bootstrap interval of the mean]"
    table = Table(f"Results: {game.game}", ["", *(result.group.label for result in game.groups)])
    if not all(run.completed for result in game.groups for run in result.group.runs):
        note += "; what a run that was cut short has less of is of completed runs only, n says of how many"
    table.note = note
    seeds = [", ".join(str(run.seed) for run in result.group.runs) for result in game.groups]
    table.rows.append(["Seeds (n)", *(f"n={len(r.group.runs)}\n({s})" for r, s in zip(game.groups, seeds))])
    for metric in METRICS:
        if metric.key in TO_THRESHOLD:
            table.rows += _threshold_row(game, metric)
        elif any(result.estimates.get(metric.key) is not None for result in game.groups):
            table.rows.append([_row_name(game, metric), *(_cell(metric, result) for result in game.groups)])
    return table


def _row_name(game: GameResult, metric: Metric) -> str:
    """Title and unit; for a figure at an equal point of a clock, where that is."""
    for clock in TIME_AXES:
        window = game.windows[clock.key]
        if window is not None and metric.key in (f"return_at_{clock.key}", f"area_{clock.key}"):
            start = f"{window_text(clock, window.start)} to " if metric.key.startswith("area") else ""
            return f"{metric.title}\n({start}{window_text(clock, window.end)})"
    return f"{metric.title} ({metric.unit})" if metric.unit and metric.key not in DERIVED else metric.title


def _cell(metric: Metric, result: GroupResult) -> str:
    found = result.estimates[metric.key]
    text = spread_text(metric, found)
    interval = interval_text(metric, found) if metric.better else ""
    if found is not None and found.n != len(result.group.runs) and metric.key not in DERIVED:
        text += f" (n={found.n})"
    if found is not None and metric.key in OF_WHOLE_RUNS and not any(r.completed for r in result.group.runs):
        text += " (cut short)"
    return f"{text}\n{interval}" if interval else text


def threshold_name(metric: Metric, found: ThresholdResult) -> str:
    """`Time to a return of 8`."""
    return metric.title.replace("the threshold", f"a return of {found.threshold:g}")


def _threshold_row(game: GameResult, metric: Metric) -> list[list[str]]:
    """What the groups took to reach the threshold; no row without one."""
    clock = TO_THRESHOLD[metric.key]
    found = [result.reached.get(clock.key) for result in game.groups]
    some = next((each for each in found if each is not None), None)
    if some is None:
        return []
    return [[f"{threshold_name(metric, some)}\n(median of seeds)", *(reached_text(clock, r) for r in found)]]


def pairs_table(pairs: Sequence[Pair], title: str, baseline: str) -> Table:
    """Tests between groups; with many groups only those against the baseline."""
    header = ["First - second", "Difference [95 %]", "Welch's t", "p", "Holm's p"]
    header += ["P(first better) [95 %]", "n"]
    note = (
        "Welch's t-test, p also adjusted by Holm's method over all pairs of a figure; P: the probability "
        "that a run of the first is better than one of the second (of memory, gap, way to a threshold less "
        f"is better), with an interval where both have {ENOUGH} runs and resamples differ; pairs without two "
        "seeds each have no test"
    )
    chosen = [pair for pair in pairs if min(pair.counts) > 1]
    labels = {pair.ours for pair in pairs} | {pair.theirs for pair in pairs}
    if len(labels) * (len(labels) - 1) / 2 > MANY_PAIRS and baseline in labels:
        chosen = [pair for pair in chosen if baseline in (pair.ours, pair.theirs)]
        note += f"; only pairs with {baseline} are shown, the JSON file has all"
    return Table(title, header, [_pair_row(pair) for pair in chosen], note)


def _pair_row(pair: Pair) -> list[str]:
    metric, test, better = BY_KEY[pair.metric], pair.welch, pair.improvement
    name = f"{metric.title}\n{pair.ours} - {pair.theirs}"
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
    """Procgen-normalised scores over games; a column for a group."""
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
    """Whether the interquartile mean of some group is another figure than its mean."""
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
    metric = BY_KEY["final_reward"]._replace(digits=3)
    lines = [value_text(metric, found.mean) + (f" (n={found.n})" if found.n != runs else "")]
    return "\n".join(filter(None, [*lines, interval_text(metric, found)]))


def phase_shares(result: GroupResult) -> dict[str, float] | None:
    """Share of the time by phase, the mean over runs; None if no run recorded it. Phases that the record
    has beyond the known ones are kept."""
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
    """Where the time went, by group."""
    found = {result.group.label: shares for result in game.groups if (shares := phase_shares(result))}
    if not found:
        return None
    names = list(dict.fromkeys(name for shares in found.values() for name in shares))
    rows = [[label, *(f"{shares.get(name, 0):.1%}" for name in names)] for label, shares in found.items()]
    note = "shares of wall clock, mean over runs"
    return Table(f"Where the time went: {game.game}", ["Group", *names], rows, note)


def runs_table(comparison: Comparison) -> Table:
    """Every run by itself."""
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
