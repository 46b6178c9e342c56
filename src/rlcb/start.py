# PYTHON_ARGCOMPLETE_OK
"""Starts a command so that Ctrl-C ends it quietly, also while its modules load."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

INTERRUPTED = 130


def start(module: str, *arguments: Any, **options: Any) -> NoReturn:
    """Call `main` of `module`, a module of rlcb.cli, and end this process with the exit code it returns."""
    try:
        code = importlib.import_module(module).main(*arguments, **options)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def rlcb() -> NoReturn:
    """The installed command `rlcb`. It finds environments and wrappers of the working directory."""
    sys.path.append("")  # last, so that no file there hides a module of a package
    start("rlcb.cli.main")
