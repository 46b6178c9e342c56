"""Imported by the process that workers are forks of (src/worker_origin.py): loads what all workers need.

A failure is left to the workers, which load the same again and say what is wrong with it.
"""

import contextlib
import gc

with contextlib.suppress(Exception):
    import src.trainer  # noqa: F401

gc.freeze()  # a worker's garbage collector then leaves these objects alone, and with them the shared pages
