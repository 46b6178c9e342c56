"""What parallel/preload.py does, and Procgen's pictures."""

from __future__ import annotations

import contextlib

import rlcb.parallel.preload  # noqa: F401

with contextlib.suppress(Exception):
    from rlcb.envs.procgen import load_pictures

    load_pictures()
