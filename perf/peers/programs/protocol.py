"""What every peer's program does alike: read its settings, make the game, announce itself, say how far it is.

A program is started as `python -m perf.peers.programs.NAME SETTINGS`, SETTINGS being a case of
perf/peers/cases.py as JSON. It writes lines to stdout that begin with MARK and go on as JSON: one with what
it trains, then one after every update. Nothing heavy is imported here, since every peer's Python has to.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any

from rlcb import cpu

MARK = "PEER "
GAME = "coinrun"
LEVELS = {"num_levels": 200, "start_level": 0, "distribution_mode": "easy"}


def settings() -> dict[str, Any]:
    """The settings that the program was started with; with `tune_allocator` this project's allocator settings
    are in force from here on. As in this project, that has to be before torch is loaded."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    if given["tune_allocator"]:
        if "torch" in sys.modules:
            sys.exit("the allocator's settings come too late: torch is loaded")
        if not cpu.tune_allocator():
            sys.exit("the allocator's settings have no effect on this system")
    return given


def most_workers(batches: int, cores: int) -> int:
    """Return the largest number of workers, at most one for each core, that divides the number of batches."""
    return next(count for count in range(min(batches, cores), 0, -1) if batches % count == 0)


def make_procgen(num_envs: int, num_threads: int | None = None, seed: int = 0) -> Any:
    """Procgen's native batch of environments, with a thread for each core unless said otherwise. Batches of
    one program need seeds of their own, or all play the same levels in the same order."""
    with contextlib.redirect_stderr(io.StringIO()):  # gym's notice that it is unmaintained
        from procgen import ProcgenGym3Env
    threads = cpu.usable_cores() if num_threads is None else num_threads
    return ProcgenGym3Env(num=num_envs, env_name=GAME, num_threads=threads, rand_seed=1 + seed, **LEVELS)


class Reporter:
    """Says what is trained when it is made, and counts the seconds from then on."""

    def __init__(self, num_parameters: int, threads: int, packages: Sequence[str]) -> None:
        """`packages` are the peer's own, whose versions are of interest beside those of torch and Procgen."""
        versions = {"python": platform.python_version()}
        for name in ("torch", "numpy", "procgen", "procgen-mirror", *packages):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # one of the two Procgens
                versions[name.removesuffix("-mirror")] = importlib.metadata.version(name)
        self._say({"parameters": num_parameters, "threads": threads, "versions": versions})
        self._start = time.perf_counter()

    def progress(self, timesteps: int) -> None:
        """To be called after every update, with the environment steps that were learned from so far."""
        self._say({"timesteps": timesteps, "seconds": time.perf_counter() - self._start})

    @staticmethod
    def _say(message: dict[str, Any]) -> None:
        sys.__stdout__.write(f"{MARK}{json.dumps(message)}\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
