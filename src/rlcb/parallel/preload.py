"""Imported by the process that workers are forks of (parallel/forkserver.py): loads what all workers need.

A failure is left to the workers, which load the same again and say what is wrong with it.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(Exception):
    import rlcb.parallel.worker
    import rlcb.training.run  # noqa: F401
