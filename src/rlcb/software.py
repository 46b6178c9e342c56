"""The software versions that the numbers of a run depend on."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess

from rlcb.paths import IS_CHECKOUT, PROJECT


def _version(*distributions: str) -> str | None:
    """Return the version of the first of these distributions that is installed."""
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _git_commit() -> str | None:
    """Return the commit of the clone, with `-dirty` for changed files; None for an installed package."""
    if not IS_CHECKOUT:
        return None  # the folder of the package may lie inside another repository
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


@functools.cache
def describe_software() -> dict[str, str | None]:
    """Return the versions of Python and the main packages, and the commit if this is a clone."""
    return {
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "procgen": _version("procgen", "procgen-mirror"),
        "gymnasium": _version("gymnasium"),
        "git_commit": _git_commit(),
    }
