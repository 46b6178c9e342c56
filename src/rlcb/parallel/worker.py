"""The body of a worker process: run its part of the training, and report to the supervisor how that ended."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from rlcb import cpu
from rlcb.errors import Interrupted, PeerLost, RunError, UsageError
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.processes.child_process import enter_child
from rlcb.training.run_spec import RunSpec


def worker_main(
    connection: Connection,
    module: str,
    spec: RunSpec,
    make_context: Callable[..., SupervisedContext],
) -> None:
    """Call `work(spec, context)` of `module`, which only workers import, and report how it ended.

    The report is ("ended", exit code of the run) or (kind of error, message); the supervisor knows the kinds.
    """
    enter_child()
    logging.basicConfig(format="%(levelname)s: %(message)s")
    code = 1
    try:
        if spec.config.hardware.tune_allocator:
            cpu.tune_allocator()
        context = make_context(connection=connection)
        if spec.pinning:
            cpu.pin(spec.pinning[context.rank])
        connection.send(("ended", importlib.import_module(module).work(spec, context)))
        code = 0
    except Interrupted:  # before the run began: there is nothing to record
        code = 0
    except UsageError as error:
        connection.send(("usage", str(error)))
    except PeerLost as error:
        connection.send(("peer", str(error)))
    except RunError as error:
        connection.send(("run", str(error)))
    except BaseException as error:
        traceback.print_exc()
        connection.send(("fault", f"{type(error).__name__}: {error}"))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # skips clean-up that would wait for peers, which may be gone
