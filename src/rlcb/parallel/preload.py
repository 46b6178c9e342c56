"""Imported by the process that workers are forks of (parallel/forkserver.py): loads what all workers need.

A failure is left to the workers, which load the same again and say what is wrong with it.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(Exception):
    # The first step of an optimizer loads this. Loaded here, it costs 70 MB and a second of computing once for
    # all workers, not once for each.
    import torch._dynamo  # noqa: F401

    import rlcb.training.trainer  # noqa: F401
