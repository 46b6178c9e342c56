# PYTHON_ARGCOMPLETE_OK
"""Starts a command so that Ctrl-C ends it quietly, also while its modules load."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any, NoReturn

INTERRUPTED = 130


def start(module: str, *arguments: Any, **options: Any) -> NoReturn:
    """Call `main` of `module`, a module of rlcb.cli, and end this process with the exit code it returns."""
    try:
        code = load(module).main(*arguments, **options)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def load(module: str) -> Any:
    """Import a module. Ctrl-C ends the process at once meanwhile: NumPy, while it loads, turns
    KeyboardInterrupt into an ImportError."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, as in a background job
        return importlib.import_module(module)
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    loaded = importlib.import_module(module)
    signal.signal(signal.SIGINT, before)
    return loaded


def rlcb() -> NoReturn:
    """The installed command `rlcb`. It finds environments and wrappers of the working directory."""
    sys.path.append("")  # last, so that no file there hides a module of a package
    start("rlcb.cli.main")
