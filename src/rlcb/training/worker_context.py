"""How one process of a run is told, stopped and watched."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcb.config.settings import ParallelConfig
from rlcb.errors import EXIT_FAILED
from rlcb.processes.shared_memory import map_shared, open_rollout
from rlcb.processes.signals import StopSignal


@dataclass(kw_only=True)
class WorkerContext:
    """The context of a process that trains alone, and the interface of all others.

    `train` (training/run.py) gets one. Subclasses are for processes that train together: SupervisedContext
    for the children of a supervisor (parallel/worker_context.py), LaunchedContext for a process that a
    launcher started, and RankContext for either of them in a distributed run (cluster/rank.py).
    """

    stop: StopSignal | None = None
    """Catches this process's stop signals; None if nothing does."""
    root_process: int = field(default_factory=os.getpid)
    """The id of the process whose tree is the run: memory and CPU time are measured over it."""
    folder: Path | None = None
    """The run's folder, once the run has taken it: from then on a failure needs a record there."""

    # --- Stopped -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Note progress; raise Interrupted or PeerLost if the run must end now. Called between environment
        steps and between microbatches."""
        if self.stop is not None:
            self.stop.check()

    def breakable(self) -> contextlib.AbstractContextManager[None]:
        """Context manager around the updates. A process that trains alone has nobody who notices that its
        environment hangs, so there the second signal interrupts the step."""
        alone = self.stop is not None and not self.stop.repeats
        return self.stop.breakable() if self.stop is not None and alone else contextlib.nullcontext()

    def stop_requested(self) -> int:
        """Return the number of the signal for which the run stops at its next update boundary; 0 without one.

        Only the ranks of a distributed run wait for the boundary. `check` interrupts all other processes.
        """
        return 0

    def aborted(self) -> bool:
        """Whether this process must leave because another process of its node failed."""
        return False

    def abort_cause(self) -> tuple[str, str] | None:
        """The (kind, message) of that failure, if no rank reports it itself."""
        return None

    # --- Watched -----------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Note that this process makes progress."""

    def wait_for_others(self) -> contextlib.AbstractContextManager[None]:
        """Context manager around every wait for other processes: a process that waits does not hang."""
        return contextlib.nullcontext()

    def report_hang(self, message: str) -> None:
        """End this process, whose main thread hangs. Called by a background thread."""
        os._exit(EXIT_FAILED)

    def report_folder(self, root: Path) -> None:
        """Note that the run has taken the folder `root`. Called in the main process."""
        self.folder = root

    # --- Shared ------------------------------------------------------------------------------------------

    def broadcast(self, value: Any = None, source: int = 0) -> Any:
        """Return the value of worker `source` in every worker. All call it in the same order."""
        return value

    def shared_memory(self, config: ParallelConfig, size: int) -> Any:
        """Return a buffer of `size` bytes, zeros at first, that all workers of this node share.

        In a run of one process: the file that `parallel.buffer` asks for, or None for private memory.
        """
        return None if config.buffer == "auto" else map_shared(open_rollout(config, size))
