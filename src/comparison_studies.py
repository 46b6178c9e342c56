"""What a study left beside its runs: which runs it has, and what its log says of each."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.comparison_runs import Run, as_number, dig
from src.errors import UsageError
from src.study import build_study
from src.study_folder import LOG_FILE, STUDY_FILE, read_study_file
from src.study_state import TRAINING_LOG, reason_in


def missing_runs(root: Path, found: Collection[Path]) -> list[tuple[Path, str]]:
    """(folder, reason) of the runs that the study in `root` should have and that left nothing to read.

    `found` are the resolved folders of those that did."""
    path = root / STUDY_FILE
    try:
        study = build_study(read_study_file(path), str(path))
    except UsageError as error:
        return [(path, f"which runs are missing is not known: {error}")]
    folders = [root / cell.name for cell in study.cells]
    return [(folder, _why_missing(folder)) for folder in folders if folder.resolve() not in found]


def _why_missing(folder: Path) -> str:
    log = folder / TRAINING_LOG
    if log.exists():
        return f"it ended before it wrote its configuration: {reason_in(log)}"
    return "it has not begun"


@dataclass
class Logged:
    """What the log of a study says of a run."""

    host: str | None = None
    """The machine that it was on last."""
    others_percent: float = math.nan
    """Share of the cores that other programs used before it began; NaN where that was not measured."""
    completed: bool = False
    anew: bool = False
    """Whether it was begun anew after it had been completed."""

    def take(self, row: dict[str, Any]) -> None:
        """Take in a line about this run, in the order of the log."""
        event = row.get("event")
        if event in ("start", "end") and isinstance(row.get("host"), str):
            self.host = row["host"]
        if event == "start":
            self.anew |= self.completed and row.get("resumed") is False
            share = as_number(dig(row, "load.cpu_percent"))
            self.others_percent = share if math.isfinite(share) else self.others_percent
        elif event == "end":
            self.completed |= row.get("status") == "completed"


def read_log(path: Path) -> dict[str, Logged]:
    """What a study_log.jsonl says, by the name of the run; empty without one. A damaged line says nothing,
    the others count."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, Logged] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("run"), str):
            found.setdefault(row["run"], Logged()).take(row)
    return found


def logged(runs: Iterable[Run]) -> dict[Run, Logged]:
    """What is logged of each run by the study that it lies in."""
    logs: dict[Path, dict[str, Logged]] = {}
    found = {}
    for run in runs:
        path = run.path.resolve()
        if path.parent not in logs:
            logs[path.parent] = read_log(path.parent / LOG_FILE)
        found[run] = logs[path.parent].get(path.name, Logged())
    return found
