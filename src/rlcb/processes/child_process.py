"""Start a function in a child process of this one: a worker of a run, or a process that measures."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from types import ModuleType

from rlcb.processes.signals import StopSignal

_MAIN_LOCK = threading.Lock()


def start_child(process: BaseProcess) -> None:
    """Start a child process that no stop signal ends before it can ignore them (`StopSignal.ignore`).

    The child does not import the program's main module, as multiprocessing has it do by default: a script
    that calls `rlcb.train` without a `__main__` guard would train again in each worker.
    """
    with StopSignal.blocked(), _empty_main_module():
        process.start()


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
