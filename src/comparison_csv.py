"""comparison.csv: a comparison for spreadsheets, one table with rows of three kinds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from src.comparison import Comparison, GroupResult, Pair
from src.comparison_metrics import METRICS, NORMALISED, TO_THRESHOLD
from src.statistics import finite

FACTS = {
    "distribution_mode": "env.distribution_mode",
    "num_levels": "env.num_levels",
    "start_level": "env.start_level",
    "num_envs": "env.num_envs",
    "architecture": "model.architecture",
}
MACHINE = ("cpu_model", "usable_cores", "ram_gb", "load_average")
HEAD = ("row", "game", "group", "algorithm", "mode", "n", "run", "seed", "status", "notes")
THRESHOLD = ("threshold", "threshold_reached", "threshold_known", "threshold_stopped")
TEST = (
    *("metric", "second", "second_n", "difference", "difference_low95", "difference_high95"),
    *("t", "degrees", "p", "p_holm", "p_better", "p_better_low95", "p_better_high95"),
)
Row = dict[str, Any]


def columns() -> list[str]:
    """All columns in their order."""
    keys = [metric.key for metric in METRICS]
    of_groups = [f"{key}_{what}" for key in keys for what in ("n", "std", "low95", "high95")]
    normalised = [f"{key}_normalised" for key in NORMALISED]
    medians = [f"{key}_median" for key in TO_THRESHOLD]
    return [*HEAD, *FACTS, *MACHINE, *keys, *of_groups, *normalised, *THRESHOLD, *medians, *TEST, "not_equal"]


def csv_text(comparison: Comparison) -> str:
    """A line for each run (`row` = run), for each group (group: means with their n, sample standard deviation
    and interval), and for each test between two groups (test: `group` less `second`).

    `not_equal` says in every line what makes the comparison unfair. Empty is what does not exist.
    """
    unfair = "; ".join(f"{each.aspect}: {each.text}" for each in comparison.fairness)
    output = io.StringIO()
    writer = csv.DictWriter(output, columns(), restval="", lineterminator="\n")
    writer.writeheader()
    for row in _rows(comparison):
        writer.writerow({**row, "not_equal": unfair})
    return output.getvalue()


def _rows(comparison: Comparison) -> Iterator[Row]:
    for result in comparison.results:
        group = result.group
        common = {"game": group.game, "group": group.label, "algorithm": group.algorithm, "mode": group.mode}
        for index in range(len(group.runs)):
            yield {**common, **_run(result, index)}
        yield {**common, **_group(result)}
    for game in comparison.games:
        yield from (_test(game.game, pair) for pair in game.pairs if pair.welch is not None)
    across = comparison.across
    if across is not None and len(across.games) > 1:
        for pair in across.pairs:
            if pair.welch is not None:
                scores = pair._replace(metric=f"{pair.metric}_normalised")
                yield _test(", ".join(across.games), scores)


def _run(result: GroupResult, index: int) -> Row:
    run = result.group.runs[index]
    row: Row = {"row": "run", "n": 1, "run": run.path, "seed": run.seed, "status": run.status}
    row["notes"] = "; ".join(run.notes)
    row |= {name: run.setting(key) for name, key in FACTS.items()}
    row |= {name: (run.record.get("hardware") or {}).get(name) for name in MACHINE}
    row |= {key: _number(values[index]) for key, values in result.values.items()}
    return row | {f"{key}_normalised": _number(each[index]) for key, each in result.normalised.items()}


def _group(result: GroupResult) -> Row:
    row: Row = {"row": "group", "n": len(result.group.runs)}
    for key, found in result.estimates.items():
        if found is not None:
            row |= {key: _number(found.mean), f"{key}_n": found.n, f"{key}_std": _number(found.std)}
            row |= {f"{key}_low95": _number(found.low), f"{key}_high95": _number(found.high)}
    for key, scores in result.normalised.items():
        if finite(scores).size:
            row[f"{key}_normalised"] = _number(float(finite(scores).mean()))
    for key, clock in TO_THRESHOLD.items():
        way = result.reached.get(clock.key)
        if way is not None:
            row |= dict(zip(THRESHOLD, (way.threshold, way.hits, way.n, way.stopped)))
            row[f"{key}_median"] = _number(way.median)
    return row


def _test(game: str, pair: Pair) -> Row:
    row: Row = {"row": "test", "game": game, "group": pair.ours, "n": pair.counts[0]}
    row |= {"metric": pair.metric, "second": pair.theirs, "second_n": pair.counts[1]}
    row["p_holm"] = _number(pair.p_adjusted)
    if pair.welch is not None:
        ends = {"difference_low95": pair.welch.low, "difference_high95": pair.welch.high}
        figures = {"difference": pair.welch.difference, **ends, "t": pair.welch.t}
        figures |= {"degrees": pair.welch.degrees, "p": pair.welch.p}
        row |= {name: _number(value) for name, value in figures.items()}
    if pair.improvement is not None:
        row["p_better"] = _number(pair.improvement.mean)
        row["p_better_low95"] = _number(pair.improvement.low)
        row["p_better_high95"] = _number(pair.improvement.high)
    return row


def _number(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else repr(round(float(value), 10))
