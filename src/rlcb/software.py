"""The versions of what the figures of a run depend on."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path


def _version(*distributions: str) -> str | None:
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


@functools.cache
def describe_software() -> dict[str, str | None]:
    """Versions of what the figures depend on, and the commit of this project if it is a git checkout."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        commit = result.stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        commit = None
    return {
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "procgen": _version("procgen", "procgen-mirror"),
        "gymnasium": _version("gymnasium"),
        "git_commit": commit,
    }
