"""comparison.json: a comparison for programs, with everything that the other outputs say."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import numpy as np

from src.comparison import Across, Comparison, GameResult, GroupResult, Pair
from src.comparison_curves import Panel
from src.comparison_groups import settings_of
from src.comparison_methods import methods
from src.comparison_metrics import CLOCKS
from src.comparison_reference import references
from src.comparison_tables import phase_shares
from src.comparison_verdicts import headline
from src.files import strict_json
from src.procgen_scores import NORMALISATION, REFERENCE_CITATION, REFERENCE_NOTE, score_range
from src.statistics import CONFIDENCE, Estimate, Values

SCHEMA_VERSION = 1


def json_data(comparison: Comparison, panels: dict[str, list[Panel]]) -> dict[str, Any]:
    """The content of comparison.json; `panels` has the curves of each game, and of all under ``."""
    options = comparison.options
    return {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "baseline": comparison.baseline,
        "confidence": CONFIDENCE,
        "bootstrap": options.bootstrap._asdict(),
        "thresholds": {name or "all games": value for name, value in options.thresholds.items()},
        "normalisation": {"source": NORMALISATION, "ranges": _ranges(comparison)},
        "headline": headline(comparison),
        "methods": methods(comparison),
        "fairness": [each._asdict() for each in comparison.fairness],
        "skipped": [{"path": str(path), "reason": reason} for path, reason in comparison.skipped],
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
            clock.key: None if (window := game.windows[clock.key]) is None else window._asdict()
            for clock in CLOCKS
        },
        "groups": [_group(result) for result in game.groups],
        "pairs": [_pair(pair) for pair in game.pairs],
        "curves": [curve_data(panel) for panel in panels],
    }


def _group(result: GroupResult) -> dict[str, Any]:
    return {
        "label": result.group.label,
        "algorithm": result.group.algorithm,
        "mode": result.group.mode,
        "n": len(result.group.runs),
        "seeds": [run.seed for run in result.group.runs],
        "metrics": {key: _estimate(found) for key, found in result.estimates.items()},
        "normalised": {key: _numbers(values) for key, values in result.normalised.items()},
        "threshold": {key: each._asdict() for key, each in result.reached.items()},
        "time_breakdown": phase_shares(result),
        "settings": settings_of(result.group.runs[0]),
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


def _numbers(values: Values) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    interval = None if found.low is None else [found.low, found.high]
    return {"mean": found.mean, "std": found.std, "ci95": interval, "n": found.n}


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "metric": pair.metric,
        "first": pair.ours,
        "second": pair.theirs,
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
    """A panel's curves with five significant digits, null where there is none."""
    return {
        "key": panel.key,
        "title": panel.title,
        "unit": panel.unit,
        "clock": panel.clock.key,
        "clock_unit": panel.clock.unit,
        "grid": short(panel.grid),
        "groups": [
            {
                "label": curve.label,
                "mean": short(curve.band.mean),
                "low": short(curve.band.low),
                "high": short(curve.band.high),
                "n": curve.band.n.tolist(),
                **({"runs": [short(each) for each in curve.runs]} if runs else {}),
            }
            for curve in panel.curves
        ],
    }


def short(values: Values) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def clean(data: dict[str, Any]) -> Any:
    """Strict JSON: what is not a number is null."""
    return strict_json(data)
