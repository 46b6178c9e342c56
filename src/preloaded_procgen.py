"""What src/preloaded.py does, and Procgen's pictures."""

import contextlib
import gc

import src.preloaded  # noqa: F401

with contextlib.suppress(Exception):
    from src.procgen_env import load_pictures

    load_pictures()

gc.freeze()
