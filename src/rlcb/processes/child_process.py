"""Start and end child processes that run a function of this package and talk with their parent over a pipe.

The supervisor of a run's workers, the measurement pool, and the process that agrees on IMPALA's split between
nodes all use these three functions, so every child ignores stop signals and ends with its parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

from rlcb.processes.output import forgive_output
from rlcb.processes.signals import StopSignal

_MAIN_LOCK = threading.Lock()


def start_child(
    context: Any, target: Callable[..., object], *arguments: Any, name: str | None = None
) -> tuple[Any, Connection]:
    """Start a process that calls `target(connection, *arguments)`; return it and the parent's connection.

    `context` is a multiprocessing context. Stop signals are blocked while the process starts, so that none
    ends it before `target` calls `enter_child`.

    The child does not import the program's main module, as multiprocessing has it do by default: a script
    that calls `rlcb.train` without a `__main__` guard would train again in each worker.
    """
    connection, child_connection = context.Pipe()
    process = context.Process(target=target, args=(child_connection, *arguments), name=name, daemon=True)
    with StopSignal.blocked(), _empty_main_module():
        process.start()
    child_connection.close()
    return process, connection


@contextlib.contextmanager
def _empty_main_module() -> Iterator[None]:
    """Put an empty module in the place of the program's main module."""
    with _MAIN_LOCK:
        before = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = before


def enter_child() -> None:
    """Leave stop signals to the parent, end this process when the parent ends, and let it live on when its
    output cannot be written. A child's first call, before logging is set up."""
    StopSignal.ignore()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    forgive_output()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def end_child(process: Any, connection: Connection) -> None:
    """Kill the process if it still runs, wait for its end, and close the connection to it."""
    if process.is_alive():
        process.kill()
    process.join()
    with contextlib.suppress(OSError):
        connection.close()
