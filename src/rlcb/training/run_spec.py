"""What a run is: its configuration, its folder, and how it starts in that folder."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rlcb.config.config import Config
from rlcb.cpu import allowed_cpus
from rlcb.errors import UsageError
from rlcb.processes.pinned_cores import Pinning, pinned_cores
from rlcb.training.run_folder import RunFolder


@dataclass(frozen=True)
class RunSpec:
    """The specification of a training run. Every process of the run gets the same one."""

    config: Config
    folder: RunFolder
    num_threads: int = 1
    """Threads of each process."""
    resume: bool = False
    """Continue from the newest checkpoint in the folder, or start from the beginning if there is none yet."""
    overwrite: bool = False
    """Replace the run that is in the folder."""
    trace_folder: Path | None = None
    """Where to write traces of the learner's second update and of an IMPALA actor's second unroll; None: no
    tracing (training/profiler.py)."""
    pinning: Pinning = ()
    """The CPUs that each worker of this node is pinned to (hardware.pin_workers); empty: none is."""

    def claimed_cores(self, workers: int) -> AbstractContextManager[Pinning]:
        """Context manager that holds cores for so many workers and gives their CPUs; () without pinning.

        Raises UsageError if `hardware.pin_workers` asks for it on a system that cannot.
        """
        if not self.config.hardware.pin_workers:
            return nullcontext(())
        if not hasattr(os, "sched_setaffinity"):
            raise UsageError("hardware.pin_workers = true: this system cannot pin processes, only Linux can")
        return pinned_cores(allowed_cpus(), workers, self.num_threads)
