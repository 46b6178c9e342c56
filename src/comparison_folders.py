"""Finding run folders on disk."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from src.comparison_runs import RECORD_FILE, ROWS_FILE
from src.errors import UsageError
from src.run_folder import CONFIG_FILE

INSIDE_RUN = ("checkpoints", "logs", "evaluation")  # folders of a run that hold no other run


def find_runs(patterns: Sequence[str]) -> list[tuple[int, Path]]:
    """The run folders under paths or globs: (index of the pattern, folder), each folder once.

    Raises UsageError for a path that does not exist and for one without any run.
    """
    found: dict[Path, tuple[int, Path]] = {}
    for index, pattern in enumerate(patterns):
        paths = (
            [Path(pattern)]
            if Path(pattern).exists()
            else sorted(map(Path, glob.glob(pattern, recursive=True)))
        )
        if not paths:
            raise UsageError(f"no file or folder matches {pattern}")
        folders = [folder for path in paths for folder in _runs_under(path)]
        if not folders:
            raise UsageError(f"no run in {pattern}: give the folder of a run, or a folder above several")
        for folder in folders:
            found.setdefault(folder.resolve(), (index, folder))
    return list(found.values())


def _runs_under(top: Path) -> list[Path]:
    certain, possible = [], []
    for root, folders, files in os.walk(top):
        folder = Path(root)
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        if RECORD_FILE in files or any(folder.glob(f"logs/*/{ROWS_FILE}")):
            certain.append(folder)
        elif CONFIG_FILE in files:
            possible.append(folder)
        else:
            continue
        folders[:] = [each for each in folders if each not in INSIDE_RUN]
    # A config.yaml above other runs belongs to all of them; alone it is a run that left nothing else.
    empty = [folder for folder in possible if not any(folder in each.parents for each in certain)]
    return sorted([*certain, *empty])
