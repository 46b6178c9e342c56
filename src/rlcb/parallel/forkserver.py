"""Start the fork server: the process that every worker of a run is a fork of.

Procgen decodes the images of all its games before it makes the first environment: 340 MB, and more than a
second. Loading torch and the modules of a run takes one to two seconds and 150 MB. The fork server loads both
once, and the workers share its pages. It has one thread, has stepped no environment and has computed nothing
when it is forked; each worker makes its own environments and threads.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext

from rlcb.config.games import procgen_game
from rlcb.paths import IMPORT_ROOT
from rlcb.processes.signals import StopSignal
from rlcb.processes.socket_folder import make_socket_folder


def worker_context(env_id: str) -> ForkServerContext:
    """Return the multiprocessing context for the workers of a run with the environment `env_id`.

    Starts the fork server, once in the life of this process. No stop signal ends the server, not even one
    sent to the whole process group (`timeout`, `docker stop`): it ends when this process and all workers have
    ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["rlcb.parallel.preload" if procgen_game(env_id) is None else "rlcb.parallel.preload_procgen"]
    )
    make_socket_folder()
    with _importable():
        # The fork server starts Python's resource tracker if there is none, and doing that unblocks SIGINT
        # and SIGTERM. So the tracker starts first, and signals are blocked again for the fork server.
        with StopSignal.blocked():
            resource_tracker.ensure_running()
        with StopSignal.blocked():
            forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Let a Python that is started inside find this package, whatever the working directory is."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = IMPORT_ROOT if before is None else IMPORT_ROOT + os.pathsep + before
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
