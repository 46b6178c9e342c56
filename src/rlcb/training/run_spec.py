"""What a run is: its configuration, its folder, and how it starts in that folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlcb.config.config import Config
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
