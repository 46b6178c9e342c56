"""The command `rlcb status`: how far runs and studies are, read from their files.

It runs anywhere that sees the folders, such as a cluster's login node, and writes nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcb.cli.command import Parser, exit_code
from rlcb.config.budget import Budget
from rlcb.config.config import Config
from rlcb.errors import UsageError
from rlcb.files import read_json
from rlcb.processes.subprocesses import tail
from rlcb.study.folder import open_study
from rlcb.study.state import RECORD, TRAINING_LOG, newest_row
from rlcb.text import brief, clock, counted
from rlcb.training.run_folder import CONFIG_FILE, STUDY_FILE, RunFolder, config_of_run

SILENT_SECONDS = 120.0  # without a new row of metrics, or SILENT_UPDATES updates if those are longer
SILENT_UPDATES = 5
HEADS = ("run", "status", "done", "timesteps", "FPS", "return", "left", "last sign", "processes")


@dataclass(frozen=True)
class RunStatus:
    """What the files of a run say."""

    name: str
    cells: tuple[str, ...]
    """The texts of HEADS after the name."""
    warning: str | None = None
    """The last warning in the log that a study keeps of a run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(description="Print how far runs and studies are. Reads files only.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of a run, or of a study")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print one line per run. Raises UsageError for a folder that holds neither a run nor a study."""
    found = [status for folder in arguments.folders for status in statuses_of(folder, time.time())]
    rows = [HEADS, *((each.name, *each.cells) for each in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for each in found:
        if each.warning is not None:
            print(f"{each.name}: {each.warning}")
    return 0


def statuses_of(folder: Path, now: float) -> list[RunStatus]:
    """Return the status of a run, or of all runs of a study in the order of its plan."""
    if (folder / STUDY_FILE).exists():
        study = open_study(folder, {})
        places = [(each.name, study.run_folder(each)) for each in study.study.runs]
        return [
            status_of(place, name, now)
            if (place / CONFIG_FILE).exists()
            else RunStatus(name, ("to do", *[""] * (len(HEADS) - 2)))
            for name, place in places
        ]
    if not (folder / CONFIG_FILE).exists():
        raise UsageError(f"{folder} holds neither a run ({CONFIG_FILE}) nor a study ({STUDY_FILE})")
    return [status_of(folder, str(folder), now)]


def status_of(folder: Path, name: str, now: float) -> RunStatus:
    """Return the status of the run in a folder; `now` is the time in seconds since 1970."""
    config, record = config_of_run(folder), read_json(folder / RECORD)
    files = RunFolder(folder, config)
    row = newest_row(files.rows)
    elapsed = float(row.get("time/elapsed_seconds") or 0.0)
    updates = int(row.get("update") or 0)
    sign = max(
        (path.stat().st_mtime for path in (files.rows, files.config_path) if path.exists()), default=now
    )
    silence = max(0.0, now - sign)
    status = str(record.get("status") or _live_status(updates, elapsed, silence))
    budget, going = Budget.of(config), status in ("starting", "running")
    left = budget.seconds_left(updates, elapsed) if going else None
    fps, mean = row.get("time/fps"), row.get("rollout/ep_reward_mean")
    cells = (
        status,
        f"{budget.share_used(updates, elapsed):.0%}",
        brief(row.get("timesteps") or 0),
        "" if fps is None else f"{fps:,.0f}",
        "" if mean is None else f"{mean:.2f}",
        "" if left is None else clock(left),
        f"{clock(silence)} ago",
        describe_processes(config),
    )
    return RunStatus(name, cells, last_warning(folder / TRAINING_LOG))


def _live_status(updates: int, elapsed: float, silence: float) -> str:
    """Return the status of a run without a final record, from its age in updates and its silence."""
    patience = max(SILENT_SECONDS, SILENT_UPDATES * elapsed / updates if updates else 0.0)
    if silence > patience:
        return "silent"
    return "running" if updates else "starting"


def describe_processes(config: Config) -> str:
    """Return the number of processes and, with several, of nodes: `2 nodes x 4 workers`, or
    `2 nodes: 1 + 3 workers`."""
    kind = "actor" if config.has_actors else "worker"
    if config.mode == "sequential":
        return "1"
    sizes = config.node_sizes
    if len({*sizes}) > 1:
        return f"{counted(len(sizes), 'node')}: {' + '.join(map(str, sizes))} {kind}s"
    each = counted(sizes[0], kind)
    return each if len(sizes) == 1 else f"{counted(len(sizes), 'node')} x {each}"


def last_warning(log: Path) -> str | None:
    """Return the last line of a log that is a warning; None without one."""
    marks: Any = ("WARNING: ", "warning: ")
    lines = [line.strip() for line in tail(log) if line.strip().startswith(marks)]
    return lines[-1] if lines else None
