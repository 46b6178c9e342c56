"""Export a comparison for other programs: comparison.json, with all results."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import numpy as np

from rlcb.comparison.analysis import Across, Comparison, GameResult, GroupResult, Pair
from rlcb.comparison.answer import answer, answers
from rlcb.comparison.curves import Panel, curve_data
from rlcb.comparison.findings import findings, headline
from rlcb.comparison.groups import LostGroup, variant_settings
from rlcb.comparison.lost import LostRun
from rlcb.comparison.methods import methods
from rlcb.comparison.metrics import TIME_AXES
from rlcb.comparison.procgen_scores import NORMALISATION, REFERENCE_CITATION, REFERENCE_NOTE, score_range
from rlcb.comparison.reference import references
from rlcb.comparison.scores import scores_data
from rlcb.comparison.statistics import CONFIDENCE, IntervalEstimate, Values
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
        **scores_data(comparison),
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
