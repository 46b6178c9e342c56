"""Tidy tables of a comparison: one row for each run (finals), and one for each logged update (curves)."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np

from rlcb.comparison.analysis import Comparison, GameResult, GroupResult
from rlcb.comparison.groups import game_name
from rlcb.comparison.metrics import DERIVED, METRICS, NORMALISED, REWARD
from rlcb.comparison.runs import Run

Row = dict[str, Any]

NAMES = ("run", "group", "algorithm", "mode", "game", "seed")
CURVE_COLUMNS = (*NAMES, "timesteps", "seconds", "return")
FACTS = {
    "distribution_mode": "env.distribution_mode",
    "num_levels": "env.num_levels",
    "start_level": "env.start_level",
    "num_envs": "env.num_envs",
    "architecture": "model.architecture",
}
MACHINE = ("cpu_model", "usable_cores", "ram_gb", "load_average")
OF_RUNS = [metric.key for metric in METRICS if metric.key not in ("duration_hours", *DERIVED)]
FINAL_COLUMNS = (
    *(*NAMES, "status", "notes", "seconds", *OF_RUNS),
    *(*(f"{key}_normalised" for key in NORMALISED), *FACTS, *MACHINE),
)


def finals(comparison: Comparison) -> list[Row]:
    """Return a row with FINAL_COLUMNS for each run, with None for missing values.

    The runs without usable results follow: their status is `failed`, `damaged`, `empty`, `not started` or
    `lost`, `notes` gives the reason, and they have no numbers.
    """
    rows = [
        _final(game, result, index)
        for game in comparison.games
        for result in game.groups
        for index in range(len(result.group.runs))
    ]
    labels = {run.path: result.group.label for result in comparison.results for run in result.group.lost}
    labels |= {run.path: group.label for group in comparison.lost for run in group.lost}
    for lost in comparison.skipped:
        names = (str(lost.path), labels.get(lost.path), lost.algorithm, lost.mode)
        game = game_name(lost.env) if lost.env is not None else None
        facts = dict(zip(NAMES, (*names, game, lost.seed)), status=lost.state, notes=lost.reason)
        rows.append(dict.fromkeys(FINAL_COLUMNS) | facts)
    return rows


def _names(game: GameResult, result: GroupResult, run: Run) -> Row:
    return dict(zip(NAMES, (str(run.path), result.group.label, run.algorithm, run.mode, game.game, run.seed)))


def _final(game: GameResult, result: GroupResult, index: int) -> Row:
    run = result.group.runs[index]
    row = {**_names(game, result, run), "status": run.status, "notes": "; ".join(run.notes)}
    row["seconds"] = 3600 * float(result.values["duration_hours"][index])
    row |= {key: float(result.values[key][index]) for key in OF_RUNS}
    row |= {f"{key}_normalised": float(each[index]) for key, each in result.normalised.items()}
    row |= {name: run.setting(key) for name, key in FACTS.items()}
    row |= {name: (run.record.get("hardware") or {}).get(name) for name in MACHINE}
    known = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in row.items()}
    return dict.fromkeys(FINAL_COLUMNS) | known


def finals_text(comparison: Comparison) -> str:
    """Return the finals as CSV. Missing values are empty."""
    output = io.StringIO()
    writer = csv.DictWriter(output, FINAL_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in finals(comparison):
        writer.writerow({key: _number(v) if isinstance(v, float) else v for key, v in row.items()})
    return output.getvalue()


def _number(value: float) -> str:
    """Return a number with ten digits, which a spreadsheet reads; empty if it is missing."""
    return f"{value:.0f}" if value.is_integer() else f"{value:.10g}" if math.isfinite(value) else ""


def curves_text(comparison: Comparison) -> str:
    """Return the curves as CSV: a line with CURVE_COLUMNS for each row of each run's metrics.jsonl.

    `return` is the mean raw return of the last 100 episodes, as it was logged; it is empty before the first
    episode has ended.
    """
    parts = [",".join(CURVE_COLUMNS) + "\n"]
    for game in comparison.games:
        for result in game.groups:
            parts += [_curve(_names(game, result, run), run) for run in result.group.runs]
    return "".join(parts)


def _curve(names: Row, run: Run) -> str:
    """Return the lines of a run. A CSV writer would take several times as long."""
    columns = [run.series[key] for key in ("timesteps", "time/elapsed_seconds", REWARD)]
    count = len(columns[0])
    if not count:
        return ""
    numbers = ("%.10g,%.10g,%.10g\n" * count) % tuple(np.stack(columns, axis=1).ravel().tolist())
    start = io.StringIO()
    csv.writer(start, lineterminator=",").writerow(names.values())
    lines = numbers.replace("nan", "").removesuffix("\n").replace("\n", f"\n{start.getvalue()}")
    return f"{start.getvalue()}{lines}\n"
