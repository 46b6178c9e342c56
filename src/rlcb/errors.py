"""The errors that end a program, and the exit codes they end it with.

Everything else that is raised is a fault of the program and shows its traceback.
"""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2


class UsageError(Exception):
    """A wrong input. The message is one line: what was wrong and what would be right. Exit code 2."""


class RunError(Exception):
    """A run that cannot go on (environment fault, divergence, full disk). One line. Exit code 1."""


class EnvironmentFault(RunError):
    """One environment of a vector raised; `index` says which, the cause what."""

    def __init__(self, index: int, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {first_line(error)}")
        self.index = index


def first_line(error: BaseException) -> str:
    """What an exception says, cut to one line."""
    return next(iter(str(error).strip().splitlines()), "")


class PeerLost(RunError):
    """Another process of the run is gone; why it went is for that process, or for who started it, to say."""


class Interrupted(Exception):
    """A signal asked the run to stop; raised between two environment steps or two gradient computations."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by signal {signal_number}")
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        """The shell's convention: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.signal_number
