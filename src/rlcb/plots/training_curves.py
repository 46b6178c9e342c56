"""The picture of a run's training curves: read its files, draw, and write the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcb.config.yaml_file import read_config_file
from rlcb.errors import UsageError
from rlcb.plots.save import picture_paths, save_figure
from rlcb.plots.style import CURVES, draw_training_curves
from rlcb.training.metrics_writer import read_rows
from rlcb.training.run_folder import CONFIG_FILE

ROWS_FILE = "metrics.jsonl"
CURVES_FILE = "training_curves.png"


def plot_run(
    path: Path, output: Path | None = None, x: str = "timesteps", formats: Sequence[str] | None = None
) -> list[Path]:
    """Draw the training curves of a run and return the pictures, one for each of `formats`.

    `path` is a metrics.jsonl or the folder of a run. `output` ends in .png, .svg or .pdf, unless `formats`
    are given; the default is training_curves.png in the run's folder, or beside a metrics.jsonl outside of a
    run's folder. `x` is timesteps or hours.

    Raises UsageError if nothing can be drawn, RunError if the picture cannot be written.
    """
    rows_path, root = locate(path)
    outputs = picture_paths(output or (root or rows_path.parent) / CURVES_FILE, formats)
    curves = load_curves(rows_path)
    if x == "hours" and not np.isfinite(curves["time/elapsed_seconds"]).any():
        raise UsageError(f"--x hours: {rows_path} has no time/elapsed_seconds; use --x timesteps")
    settings = run_settings(root)
    title = run_title(settings) or rows_path.resolve().parent.name.replace("_", " ")
    figure = draw_training_curves(curves, title, levels_text(settings), x)
    for each in outputs:
        save_figure(figure, each)
    return outputs


def locate(path: Path) -> tuple[Path, Path | None]:
    """Return the metrics.jsonl that a path means, and its run's folder if there is one. Raises UsageError."""
    if path.is_dir():
        found = sorted(path.glob(ROWS_FILE)) or sorted(path.glob(f"logs/*/{ROWS_FILE}"))
        if not found:
            raise UsageError(f"no logs/*/{ROWS_FILE} in {path}: give the folder of a run, or the file itself")
        if len(found) > 1:
            raise UsageError(f"{path} holds several runs; give one of {', '.join(map(str, found))}")
        path = found[0]
    elif not path.is_file():
        raise UsageError(f"no log file at {path}")
    # Messages show the folder as the path names it, so resolve the path only if it names too few folders.
    above = (path if len(path.parents) > 2 and ".." not in path.parts else path.resolve()).parents
    inside_run = len(above) > 2 and (above[2] / CONFIG_FILE).is_file()
    return path, above[2] if inside_run else None


def load_curves(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return the columns CURVES of a metrics.jsonl, (rows,) float64 each, with NaN for missing values.

    Raises UsageError if there are no rows, or if a line is damaged; the message names the line.
    """
    try:
        rows = read_rows(path)
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not rows:
        raise UsageError(f"{path} has no rows yet: the first one is written when an update is finished")
    lines = list(enumerate(rows, 1))
    return {key: np.array([_number(row, key, path, line) for line, row in lines]) for key in CURVES}


def _number(row: dict[str, Any], key: str, path: Path, line: int) -> float:
    """Return the number under `key`, NaN if there is none. Raises UsageError for anything else."""
    value = row.get(key)
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    if key == "timesteps" or not (value is None or isinstance(value, float)):
        raise UsageError(f"{path} line {line}: {key} = {value!r} is not a number")
    return math.nan


def run_settings(root: Path | None) -> dict[str, Any]:
    """Return the content of a run's config.yaml, {} if it cannot be read."""
    try:
        return read_config_file(root / CONFIG_FILE) if root is not None else {}
    except UsageError:
        return {}


def _section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a section of the settings, {} if it is missing or damaged."""
    section = settings.get(name)
    return section if isinstance(section, dict) else {}


def run_title(settings: dict[str, Any]) -> str:
    """`PPO sequential on procgen-coinrun-v0, seed 42`; empty without settings."""
    env, seed = _section(settings, "env").get("id"), _section(settings, "training").get("seed")
    text = f"{str(settings.get('algorithm', '')).upper()} {settings.get('mode', '')}".strip()
    if text and env is not None:
        text += f" on {env}"
    return f"{text}, seed {seed}" if text and seed is not None else text


def levels_text(settings: dict[str, Any]) -> str:
    """`easy, 200 levels` for a Procgen run, else the empty string."""
    env = _section(settings, "env")
    if not str(env.get("id", "")).startswith("procgen-"):
        return ""
    mode, levels = env.get("distribution_mode", "easy"), env.get("num_levels")
    if not isinstance(levels, int):
        return str(mode)
    return f"{mode}, {f'{levels:,}' if levels else 'all'} levels"
