"""Finding run folders on disk."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from src.comparison_runs import RECORD_FILE, ROWS_FILE
from src.comparison_studies import missing_runs
from src.errors import UsageError
from src.run_folder import CONFIG_FILE
from src.study_folder import CONFIGS, STUDY_FILE

INSIDE_RUN = ("checkpoints", "logs", "evaluation")  # folders of a run that hold no other run
BESIDE_RUNS = (CONFIGS, "slurm")  # folders of a study that hold none
NAMED = 3  # paths in a message


@dataclass
class Found:
    """What lies under the paths of a command line."""

    runs: list[tuple[int, Path]] = field(default_factory=list)
    """(index of the pattern, folder), each folder once."""
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    """(path, reason): folders without a run, and runs that a study should have."""
    studies: set[Path] = field(default_factory=set)
    """Resolved folders of the studies that are covered as a whole."""


def find_runs(patterns: Sequence[str]) -> Found:
    """The run folders under paths or globs. Files are passed over: for study/* a shell names them as well.

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
    left_out = {path.resolve(): (path, "no run in it") for path in empty}
    for root in studies.values():
        left_out |= {path.resolve(): (path, reason) for path, reason in missing_runs(root, places)}
    if not places:
        raise UsageError(
            f"no run in {_some(patterns)}: give the folder of a run, or a folder above several"
            + (f" ({_some([f'{path}: {reason}' for path, reason in left_out.values()])})" if studies else "")
        )
    return Found(list(places.values()), list(left_out.values()), set(studies))


def _matching(pattern: str) -> list[Path]:
    if Path(pattern).exists():
        return [Path(pattern)]
    found = sorted(map(Path, glob.glob(pattern, recursive=True)))
    if not found:
        raise UsageError(f"no file or folder matches {pattern}")
    return found


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


def _is_of_study(path: Path) -> bool:
    """Whether a folder is one that a study has beside its runs."""
    return path.name in BESIDE_RUNS and (path.parent / STUDY_FILE).exists()


def _under(top: Path) -> tuple[list[Path], list[Path]]:
    """The run folders under a path, and the studies that it covers as a whole: a study.yaml that is named by
    itself came from study/*."""
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
