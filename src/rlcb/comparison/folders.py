"""Find the folders of runs on disk, and read the logs of the studies that they belong to."""

from __future__ import annotations

import glob
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcb.comparison.lost import RECORD_FILE, LostRun
from rlcb.comparison.runs import ROWS_FILE, Run, as_number, dig
from rlcb.errors import UsageError
from rlcb.training.run_folder import CONFIG_FILE, STUDY_CONFIGS, STUDY_FILE, STUDY_LOG_FILE

INSIDE_RUN = ("checkpoints", "logs", "evaluation")  # folders of a run that hold no other run
BESIDE_RUNS = (STUDY_CONFIGS, "slurm")  # folders of a study that hold none
NAMED = 3  # paths in a message


@dataclass
class Found:
    """The runs and studies found under the paths of a command line."""

    runs: list[tuple[int, Path]] = field(default_factory=list)
    """(index of the pattern, folder), each folder once."""
    left_out: list[LostRun] = field(default_factory=list)
    """Folders without a run, and runs that a study should have."""
    studies: set[Path] = field(default_factory=set)
    """Resolved folders of the studies that are covered as a whole."""


MissingRuns = Callable[[Path, Collection[Path]], list[LostRun]]
"""Maps a study's folder and the resolved folders of the runs that exist to the other planned runs."""


def find_runs(patterns: Sequence[str], missing_runs: MissingRuns) -> Found:
    """Return the run folders under paths or globs, and which runs their studies lack.

    Files are ignored: for `study/*` a shell also names the files of the study.

    Raises UsageError for a pattern that nothing matches, and if there is no run at all.
    """
    paths = [(index, path) for index, pattern in enumerate(patterns) for path in _matching(pattern)]
    places: dict[Path, tuple[int, Path]] = {}
    studies: dict[Path, Path] = {}
    empty: list[Path] = []
    for index, path in paths:
        runs, roots = _under(path)
        studies |= {root.resolve(): root for root in roots}
        if not runs and path.is_dir() and not _is_of_study(path):
            empty.append(path)
        for run in runs:
            places.setdefault(run.resolve(), (index, run))
    left_out = {path.resolve(): LostRun(path, "no run in it") for path in empty}
    for root in studies.values():
        left_out |= {lost.path.resolve(): lost for lost in missing_runs(root, places)}
    if not places:
        raise UsageError(
            f"no run in {_some(patterns)}: give the folder of a run, or a folder above several"
            + (
                f" ({_some([f'{lost.path}: {lost.reason}' for lost in left_out.values()])})"
                if studies
                else ""
            )
        )
    return Found(list(places.values()), list(left_out.values()), set(studies))


def _matching(pattern: str) -> list[Path]:
    if Path(pattern).exists():
        return [Path(pattern)]
    found = sorted(map(Path, glob.glob(_with_literal_folders(pattern), recursive=True)))
    if not found:
        raise UsageError(f"no file or folder matches {pattern}")
    return found


def _with_literal_folders(pattern: str) -> str:
    """Escape the leading folders that exist under just this name, such as `study [a]` in `study [a]/*`."""
    parts = Path(pattern).parts
    literal = next(count for count in range(len(parts), -1, -1) if Path(*parts[:count]).exists())
    return str(Path(glob.escape(str(Path(*parts[:literal]))), *parts[literal:]))


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


def _is_of_study(path: Path) -> bool:
    """Return whether a folder belongs to a study but holds no runs."""
    return path.name in BESIDE_RUNS and (path.parent / STUDY_FILE).exists()


def _under(top: Path) -> tuple[list[Path], list[Path]]:
    """Return the run folders under a path, and the studies that the path covers completely.

    A path to a study.yaml covers its study, because a shell expands `study/*` to such paths.
    """
    if not top.is_dir():
        return [], [top.parent] if top.name == STUDY_FILE else []
    certain, possible, studies = [], [], []
    for root, folders, files in os.walk(top):
        folder = Path(root)
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        if STUDY_FILE in files:
            studies.append(folder)
        if RECORD_FILE in files or any(folder.glob(f"logs/*/{ROWS_FILE}")):
            certain.append(folder)
        elif CONFIG_FILE in files:
            possible.append(folder)
        else:
            continue
        folders[:] = [each for each in folders if each not in INSIDE_RUN]
    # A config.yaml above other runs belongs to all of them; alone it is a run that left nothing else.
    empty = [folder for folder in possible if not any(folder in each.parents for each in certain)]
    return sorted([*certain, *empty]), studies


@dataclass
class Logged:
    """The entries of a study's log about one run."""

    host: str | None = None
    """The machine that trained the run last."""
    others_percent: float = math.nan
    """Use of the cores by other programs before the start, in percent; NaN if it was not measured."""
    completed: bool = False
    restarted: bool = False
    """Whether the run was started from the beginning after it had completed."""

    def add_event(self, row: dict[str, Any]) -> None:
        """Add the next event of this run."""
        event = row.get("event")
        if event in ("start", "end") and isinstance(row.get("host"), str):
            self.host = row["host"]
        if event == "start":
            self.restarted |= self.completed and row.get("resumed") is False
            share = as_number(dig(row, "load.cpu_percent"))
            self.others_percent = share if math.isfinite(share) else self.others_percent
        elif event == "end":
            self.completed |= row.get("status") == "completed"


def read_log(path: Path) -> dict[str, Logged]:
    """Read a study_log.jsonl; return the logged facts by name of the run. Damaged lines are skipped, and a
    missing file gives an empty result."""
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
            found.setdefault(row["run"], Logged()).add_event(row)
    return found


def logged(runs: Iterable[Run]) -> dict[Run, Logged]:
    """Return what the study of each run has logged about it."""
    logs: dict[Path, dict[str, Logged]] = {}
    found = {}
    for run in runs:
        path = run.path.resolve()
        if path.parent not in logs:
            logs[path.parent] = read_log(path.parent / STUDY_LOG_FILE)
        found[run] = logs[path.parent].get(path.name, Logged())
    return found
