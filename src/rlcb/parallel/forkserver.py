"""Where worker processes come from: each is a fork of one process that has loaded what all of them need.

Procgen decodes the pictures of all its games before it makes the first environment: 340 MB, and more than a
second. Loading torch takes two seconds and some 150 MB. Forks share these pages, so the workers of a machine
pay for them once. What is forked has one thread, has stepped no environment and has computed nothing; every
worker makes its own environments and its own threads.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

from rlcb.config.games import procgen_game
from rlcb.processes.signals import StopSignal

ROOT = str(Path(__file__).resolve().parents[2])


def worker_context(env_id: str) -> ForkServerContext:
    """The context in which to start the workers of a run with the environment `env_id`.

    The process that they are forks of starts here, once in the life of this process. No signal that stops a
    run reaches it: it goes when this process and all workers have gone.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["rlcb.parallel.preload" if procgen_game(env_id) is None else "rlcb.parallel.preload_procgen"]
    )
    with StopSignal.blocked(), _importable():
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Have a Python that is started here find this package whatever folder the user is in."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = ROOT if before is None else ROOT + os.pathsep + before
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
