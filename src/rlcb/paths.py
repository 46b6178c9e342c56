"""Where the project's files are, and how a program starts another command of the project.

Imports nothing outside the standard library, so that `rlcb --help` starts at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parents[1]

IS_CHECKOUT = (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "config").is_dir()
"""Whether the package runs from a clone of the repository (also after `pip install -e .`)."""

IMPORT_ROOT = str(_PACKAGE.parent)
"""The folder from which a Python that this package starts imports the package."""

PROJECT = _CHECKOUT if IS_CHECKOUT else _PACKAGE / "data"
"""The folder that holds `config/`, `cluster/` and `requirements.txt`: the clone, or the copies that setup.py
puts into an installed package. Treat it as read-only: an installed package may not be writable."""

CONFIG_FOLDER = PROJECT / "config"


def user_folder() -> Path:
    """Return the folder for files that later commands read again, such as machine profiles.

    This is the clone, or `$XDG_DATA_HOME/rlcb` (`~/.local/share/rlcb`) for an installed package.
    """
    if IS_CHECKOUT:
        return PROJECT
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "rlcb"


def default_config_path(algorithm: str, mode: str) -> Path:
    """Return the configuration file that a run of `algorithm` in `mode` reads unless `--config` is given."""
    name = "cpu_cluster" if mode == "distributed" else mode
    return CONFIG_FOLDER / f"{algorithm}_{name}.yaml"


def shown_path(path: Path) -> str:
    """Return `path` as messages show it: relative to the project's folder if it is inside."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def rlcb_command(command: str, *arguments: object) -> list[str]:
    """Return the words that run `rlcb COMMAND ARGUMENTS` with this Python, from any working folder."""
    return [sys.executable, "-m", "rlcb", command, *map(str, arguments)]
