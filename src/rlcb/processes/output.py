"""Standard output and standard error that cannot end a run.

A run's console is a courtesy: training goes on when its reader is gone (`| head`), when the disk behind it is
full, and when its encoding lacks a character.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class ForgivingOutput(io.RawIOBase):
    """Writes to a file descriptor, and drops what cannot be written."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)

    def write(self, data: ReadableBuffer) -> int:
        try:
            return os.write(self.descriptor, data)
        except OSError:
            return memoryview(data).nbytes


def forgive_output() -> None:
    """Make this process's stdout and stderr forgiving. Call it before the first output and before logging is
    set up. Streams that a caller has replaced, as a notebook does, stay."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the descriptor was closed when the program started
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):
            stream.flush()
            setattr(
                sys,
                name,
                io.TextIOWrapper(
                    io.BufferedWriter(ForgivingOutput(stream.fileno())),
                    encoding=stream.encoding,
                    errors="replace",
                    line_buffering=stream.line_buffering,
                    write_through=stream.write_through,
                ),
            )
