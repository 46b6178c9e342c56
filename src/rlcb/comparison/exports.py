"""Export a comparison for other programs: comparison.json with all results, and comparison.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import numpy as np

from rlcb.comparison.analysis import Across, Comparison, GameResult, GroupResult, Pair
from rlcb.comparison.answer import answer, answers
from rlcb.comparison.curves import Panel
from rlcb.comparison.findings import findings, headline
from rlcb.comparison.groups import LostGroup, game_name, variant_settings
from rlcb.comparison.lost import LostRun
from rlcb.comparison.methods import methods
from rlcb.comparison.metrics import METRICS, NORMALISED, TIME_AXES, TO_THRESHOLD
from rlcb.comparison.procgen_scores import NORMALISATION, REFERENCE_CITATION, REFERENCE_NOTE, score_range
from rlcb.comparison.reference import references
from rlcb.comparison.statistics import CONFIDENCE, IntervalEstimate, Values, finite
from rlcb.comparison.tables import phase_shares
from rlcb.comparison.warnings import cautions

SCHEMA_VERSION = 1


def json_data(comparison: Comparison, panels: dict[str, list[Panel]]) -> dict[str, Any]:
    """Return the content of comparison.json. `panels` holds the panels by environment; the empty key holds
    the panels over all games."""
    options = comparison.options
    return {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "baseline": comparison.baseline,
        "confidence": CONFIDENCE,
        "bootstrap": options.bootstrap._asdict(),
        "thresholds": {name or "all games": value for name, value in options.thresholds.items()},
        "normalisation": {"source": NORMALISATION, "ranges": _ranges(comparison)},
        "answer": answer(comparison),
        "answers": [each._asdict() for each in answers(comparison)],
        "headline": headline(comparison),
        "findings": [each._asdict() for each in findings(comparison)],
        "warnings": [each._asdict() for each in cautions(comparison)],
        "methods": methods(comparison),
        "fairness": [each._asdict() for each in comparison.fairness],
        "skipped": [_lost_run(lost) for lost in comparison.skipped],
        "games": {game.env: _game(game, panels.get(game.env, [])) for game in comparison.games},
        "over_games": None if comparison.across is None else _across(comparison.across, panels.get("", [])),
        "reference": _references(comparison),
    }


def _ranges(comparison: Comparison) -> dict[str, Any]:
    found = {}
    for result in comparison.results:
        mode = result.group.runs[0].setting("env.distribution_mode")
        limits = score_range(result.group.env, mode)
        if limits is not None:
            found[f"{result.group.game} {mode}"] = list(limits)
    return found


def _game(game: GameResult, panels: list[Panel]) -> dict[str, Any]:
    return {
        "game": game.game,
        "equal": {
            time_axis.key: None if (window := game.windows[time_axis.key]) is None else window._asdict()
            for time_axis in TIME_AXES
        },
        "groups": [_group(result) for result in game.groups],
        "lost_groups": [_lost_group(group) for group in game.lost],
        "pairs": [_pair(pair) for pair in game.pairs],
        "curves": [curve_data(panel) for panel in panels],
    }


def _group(result: GroupResult) -> dict[str, Any]:
    return {
        "label": result.group.label,
        "algorithm": result.group.algorithm,
        "mode": result.group.mode,
        "n": len(result.group.runs),
        "planned": result.group.planned,
        "seeds": [run.seed for run in result.group.runs],
        "lost": [_lost_run(run) for run in result.group.lost],
        "metrics": {key: _estimate(found) for key, found in result.estimates.items()},
        "normalised": {key: _numbers(values) for key, values in result.normalised.items()},
        "threshold": {key: each._asdict() for key, each in result.reached.items()},
        "time_breakdown": phase_shares(result),
        "settings": variant_settings(result.group.runs[0]),
        "runs": [
            {
                "path": str(run.path),
                "seed": run.seed,
                "status": run.status,
                "notes": list(run.notes),
                "hardware": run.record.get("hardware"),
                "software": run.record.get("software"),
                "metrics": {key: float(values[index]) for key, values in result.values.items()},
            }
            for index, run in enumerate(result.group.runs)
        ],
    }


def _lost_run(run: LostRun) -> dict[str, Any]:
    return {"path": str(run.path), "reason": run.reason, "seed": run.seed}


def _lost_group(group: LostGroup) -> dict[str, Any]:
    runs = [_lost_run(run) for run in group.lost]
    return {"label": group.label, "n": 0, "planned": len(group.lost), "lost": runs}


def _numbers(values: Values) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _estimate(found: IntervalEstimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    interval = None if found.low is None else [found.low, found.high]
    return {"mean": found.mean, "std": found.std, "ci95": interval, "n": found.n}


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "metric": pair.metric,
        "first": pair.first,
        "second": pair.second,
        "n": list(pair.counts),
        "welch": pair.welch and pair.welch._asdict(),
        "p_holm": pair.p_adjusted,
        "probability_of_improvement": _estimate(pair.improvement),
    }


def _across(across: Across, panels: list[Panel]) -> dict[str, Any]:
    return {
        "games": across.games,
        "scores": {
            metric: {
                label: {"iqm": _estimate(found.iqm), "mean": _estimate(found.mean)}
                for label, found in scores.items()
            }
            for metric, scores in across.scores.items()
        },
        "pairs": [_pair(pair) for pair in across.pairs],
        "curves": [curve_data(panel) for panel in panels],
    }


def _references(comparison: Comparison) -> dict[str, Any] | None:
    if not comparison.options.reference:
        return None
    return {
        "citation": REFERENCE_CITATION,
        "note": REFERENCE_NOTE,
        "games": {
            each.game: {
                **{key: values.tolist() for key, values in each.figures._asdict().items()},
                "groups": {label: [_estimate(found) for found in row] for label, row in each.groups.items()},
                "settings_that_differ": each.differing,
            }
            for each in references(comparison)
        },
    }


def curve_data(panel: Panel, runs: bool = False) -> dict[str, Any]:
    """Return a panel's curves with five significant digits, None where a curve has no value."""
    return {
        "key": panel.key,
        "title": panel.title,
        "unit": panel.unit,
        "clock": panel.time_axis.key,
        "clock_unit": panel.time_axis.unit,
        "grid": rounded(panel.grid),
        "groups": [
            {
                "label": curve.label,
                "planned": curve.planned,
                "mean": rounded(curve.band.mean),
                "low": rounded(curve.band.low),
                "high": rounded(curve.band.high),
                "n": curve.band.n.tolist(),
                **({"runs": [rounded(each) for each in curve.runs]} if runs else {}),
            }
            for curve in panel.curves
        ],
    }


def rounded(values: Values) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


FACTS = {
    "distribution_mode": "env.distribution_mode",
    "num_levels": "env.num_levels",
    "start_level": "env.start_level",
    "num_envs": "env.num_envs",
    "architecture": "model.architecture",
}
MACHINE = ("cpu_model", "usable_cores", "ram_gb", "load_average")
HEAD = ("row", "game", "group", "algorithm", "mode", "n", "planned", "run", "seed", "status", "notes")
THRESHOLD = ("threshold", "threshold_reached", "threshold_known", "threshold_stopped")
TEST = (
    *("metric", "second", "second_n", "difference", "difference_low95", "difference_high95"),
    *("t", "degrees", "p", "p_holm", "p_better", "p_better_low95", "p_better_high95"),
)
Row = dict[str, Any]


def columns() -> list[str]:
    """Return the names of all columns of comparison.csv, in order."""
    keys = [metric.key for metric in METRICS]
    of_groups = [f"{key}_{what}" for key in keys for what in ("n", "std", "low95", "high95")]
    normalised = [f"{key}_normalised" for key in NORMALISED]
    medians = [f"{key}_median" for key in TO_THRESHOLD]
    return [*HEAD, *FACTS, *MACHINE, *keys, *of_groups, *normalised, *THRESHOLD, *medians, *TEST, "not_equal"]


def csv_text(comparison: Comparison) -> str:
    """Return comparison.csv: a line for each run, each group and each test, told apart by the column `row`.

    Lines of groups hold means with n, sample standard deviation and interval; lines of tests hold `group`
    minus `second`. `not_equal` repeats in every line what makes the comparison unfair. Missing values are
    empty.
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
        yield from ({**common, **_lost_columns(run)} for run in group.lost)
        yield {**common, **_group_columns(result)}
    for lost in comparison.lost:
        common = {"game": game_name(lost.env), "group": lost.label}
        yield from ({**common, **_lost_columns(run)} for run in lost.lost)
        yield {**common, "row": "group", "n": 0, "planned": len(lost.lost)}
    for game in comparison.games:
        yield from (_test(game.game, pair) for pair in game.pairs if pair.welch is not None)
    across = comparison.across
    if across is not None and len(across.games) > 1:
        for pair in across.pairs:
            if pair.welch is not None:
                scores = pair._replace(metric=f"{pair.metric}_normalised")
                yield _test(", ".join(across.games), scores)


def _lost_columns(run: LostRun) -> Row:
    names = {"algorithm": run.algorithm, "mode": run.mode, "run": run.path, "seed": run.seed}
    return {"row": "run", "n": 0, **names, "status": "lost", "notes": run.reason}


def _run(result: GroupResult, index: int) -> Row:
    run = result.group.runs[index]
    row: Row = {"row": "run", "n": 1, "run": run.path, "seed": run.seed, "status": run.status}
    row["notes"] = "; ".join(run.notes)
    row |= {name: run.setting(key) for name, key in FACTS.items()}
    row |= {name: (run.record.get("hardware") or {}).get(name) for name in MACHINE}
    row |= {key: _number(values[index]) for key, values in result.values.items()}
    return row | {f"{key}_normalised": _number(each[index]) for key, each in result.normalised.items()}


def _group_columns(result: GroupResult) -> Row:
    row: Row = {"row": "group", "n": len(result.group.runs), "planned": result.group.planned}
    for key, found in result.estimates.items():
        if found is not None:
            row |= {key: _number(found.mean), f"{key}_n": found.n, f"{key}_std": _number(found.std)}
            row |= {f"{key}_low95": _number(found.low), f"{key}_high95": _number(found.high)}
    for key, scores in result.normalised.items():
        if finite(scores).size:
            row[f"{key}_normalised"] = _number(float(finite(scores).mean()))
    for key, time_axis in TO_THRESHOLD.items():
        way = result.reached.get(time_axis.key)
        if way is not None:
            row |= dict(zip(THRESHOLD, (way.threshold, way.hits, way.n, way.stopped)))
            row[f"{key}_median"] = _number(way.median)
    return row


def _test(game: str, pair: Pair) -> Row:
    row: Row = {"row": "test", "game": game, "group": pair.first, "n": pair.counts[0]}
    row |= {"metric": pair.metric, "second": pair.second, "second_n": pair.counts[1]}
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
