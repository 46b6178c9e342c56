"""A rank's context on its node whose answers a test chooses."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlcb.training.worker_context import WorkerContext


@dataclass(kw_only=True)
class NodeContext(WorkerContext):
    """Says what the test gives, and collects reports of hangs instead of ending the process."""

    signal_number: int = 0
    cause: tuple[str, str] | None = None
    """The (kind, message) of the failure of another process of the node."""
    hangs: list[str] = field(default_factory=list)

    def stop_requested(self) -> int:
        return int(self.signal_number)

    def aborted(self) -> bool:
        return self.cause is not None

    def abort_cause(self) -> tuple[str, str] | None:
        return self.cause

    def report_hang(self, message: str) -> None:
        self.hangs.append(message)
