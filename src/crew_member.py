"""A worker as the process that started it sees it, and the words in which its failure is told."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Failures, the causes before their consequences: wrong input, an error of the program, one of the run, a
# process that ended without a word, one that lost the others.
KINDS = ("usage", "fault", "run", "end", "peer")


@dataclass
class Worker:
    """A process, the connection to it, and what it said."""

    process: Any
    connection: Connection
    errors: list[tuple[str, str]] = field(default_factory=list)
    """(kind, message) of what it reported: usage, run, peer or fault."""
    folder: Path | None = None
    """The folder of the run, once it has taken it; only the first worker of a run does."""
    recorded: bool = False
    """Whether it came to the end of its work; the first worker has then left the record of the run."""
    exit_code: int = 0
    """What the run came to, as this worker sees it."""

    def failure(self) -> tuple[str, str] | None:
        """(kind, message) of the cause of its end, if it did not end well.

        What it said of itself comes before how it ended, and before lost peers.
        """
        found = dict(reversed(self.errors))
        code = self.process.exitcode
        if code and not found and not (code == -signal.SIGKILL and self.recorded):
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            found["end"] = f"was {how}" if code < 0 else how
        return next(((kind, found[kind]) for kind in KINDS if kind in found), None)

    def end(self) -> None:
        """Leave nothing of it behind."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        with contextlib.suppress(OSError):
            self.connection.close()


def describe(name: str, kind: str, message: str) -> str:
    """A failure of the worker `name` in one line."""
    if kind in ("usage", "peer"):  # which say themselves whom they are about
        return message
    return f"{name} {message}" if kind == "end" else f"{name}: {message}"
