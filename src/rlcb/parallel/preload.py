"""Imported by the process that workers are forks of (parallel/forkserver.py): loads what all workers need.

A failure is left to the workers, which load the same again and say what is wrong with it.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(Exception):
    # The first step of an optimizer loads this. Loaded here, all workers share its 70 MB and its second of
    # computing.
    import torch._dynamo  # noqa: F401

    import rlcb.training.trainer  # noqa: F401
