"""The results of a tuning as files: every trial as CSV and JSON, and the best settings as YAML overlays."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from rlcb.config.yaml_file import set_value
from rlcb.errors import RunError
from rlcb.files import write_atomically, write_json
from rlcb.paths import default_config_path, shown_path
from rlcb.text import duration_text
from rlcb.tuning.folder import TuningFolder
from rlcb.tuning.search import TrialResult
from rlcb.tuning.settings import Tuning

CSV_FILE, JSON_FILE = "trials.csv", "tuning.json"


@dataclass(frozen=True)
class Best:
    """The best complete trial of an algorithm, and its first trial, which has the default settings."""

    trial: TrialResult
    default: TrialResult | None
    """The first trial; None if it is not complete."""
    default_settings: dict[str, Any]


def best_of(results: Sequence[TrialResult], algorithm: str) -> Best | None:
    """Return the best trial of an algorithm, the earlier one of two that are equal; None if none is
    complete."""
    own = [result for result in results if result.algorithm == algorithm]
    complete = [result for result in own if result.state == "complete" and result.score is not None]
    if not complete:
        return None
    first = next(result for result in own if result.number == 0)
    best = max(complete, key=lambda result: (result.score or 0.0, -result.number))
    return Best(best, first if first in complete else None, first.settings)


def shown(value: Any) -> str:
    """Return a setting's value as in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def write_results(folder: TuningFolder, results: Sequence[TrialResult]) -> None:
    """Write trials.csv, tuning.json and the overlay of each algorithm that has a complete trial.

    Raises RunError if a file cannot be written.
    """
    try:
        write_atomically(folder.root / CSV_FILE, csv_text(results).encode())
        write_json(folder.root / JSON_FILE, summary(folder.tuning, results))
        for algorithm in folder.tuning.algorithms:
            best = best_of(results, algorithm)
            if best is not None:
                write_atomically(folder.overlay(algorithm), overlay_text(folder, best).encode())
    except OSError as error:
        raise RunError(f"cannot write to {folder.root}: {error.strerror or error}") from error


def csv_text(results: Sequence[TrialResult]) -> str:
    """Return a table with one row for each trial: state, score, seconds, timesteps, reason, settings."""
    keys = list(dict.fromkeys(key for result in results for key in result.settings))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["algorithm", "trial", "state", "score", "seconds", "timesteps", "reason", *keys])
    for result in results:
        timesteps = sum(run["timesteps"] for run in result.runs.values())
        settings = [shown(result.settings[key]) if key in result.settings else "" for key in keys]
        score = "" if result.score is None else repr(result.score)
        facts = [result.algorithm, result.number + 1, result.state, score, f"{result.seconds:.1f}", timesteps]
        writer.writerow([*facts, result.reason, *settings])
    return text.getvalue()


def summary(tuning: Tuning, results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return the protocol, the best trial of each algorithm, and all trials with their runs."""
    algorithms: dict[str, Any] = {}
    for name in tuning.algorithms:
        own, best = [result for result in results if result.algorithm == name], best_of(results, name)
        algorithms[name] = {
            "trials": {
                state: sum(result.state == state for result in own)
                for state in ("complete", "pruned", "failed", "running")
            },
            "seconds": sum(result.seconds for result in own),
            "default_score": None if best is None or best.default is None else best.default.score,
            "best_score": None if best is None else best.trial.score,
            "best_trial": None if best is None else best.trial.number + 1,
            "best_settings": None if best is None else best.trial.settings,
        }
    trials = [{**asdict(result), "number": result.number + 1} for result in results]
    return {"protocol": tuning.model_dump(mode="json"), "algorithms": algorithms, "trials": trials}


def overlay_text(folder: TuningFolder, best: Best) -> str:
    """Return the best settings of an algorithm, and the fixed ones, as an overlay for `--config`."""
    tuning, trial = folder.tuning, best.trial
    settings: dict[str, Any] = {}
    for key, value in {**tuning.fixed(trial.algorithm), **trial.settings}.items():
        set_value(settings, key, value, "overlay")
    base = tuning.config.get(trial.algorithm) or shown_path(default_config_path(trial.algorithm, tuning.mode))
    hours = tuning.duration
    budget = f"{tuning.total_timesteps:,} timesteps" if hours is None else duration_text(hours * 3600)
    default = "failed" if best.default is None else f"{best.default.score:.4g}"
    envs, seeds = ", ".join(tuning.envs), ", ".join(map(str, tuning.seeds))
    head = (
        f"# Overlay: the best of {tuning.trials} trials for each algorithm, trial {trial.number + 1}:\n#\n"
        f"#     python train.py --algorithm {trial.algorithm} --mode {tuning.mode} --config {base} "
        f"--config {folder.overlay(trial.algorithm)}\n#\n"
        f"# Score {trial.score:.4g}, with the default settings {default}: mean training return in the last\n"
        f"# quarter of {budget}, {envs}, seed {seeds}. The score of the best of many trials is too\n"
        "# high: compare the settings with others on new seeds (docs/tuning.md).\n"
    )
    return head + yaml.safe_dump({"when": {trial.algorithm: settings}}, sort_keys=False, width=110)
