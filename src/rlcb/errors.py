"""The exceptions that users see as one line, and the exit codes of the commands.

Any other exception is a bug of the program and shows its traceback.
"""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2


class UsageError(Exception):
    """Wrong input. The message is one line: what is wrong and what is possible. Exit code 2."""


class RunError(Exception):
    """A run failed, for example by an environment's error or a full disk. One line. Exit code 1."""


class EnvironmentFault(RunError):
    """Environment number `index` of a vector raised an exception."""

    def __init__(self, index: int, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {first_line(error)}")
        self.index = index


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, "" if it is empty."""
    return next(iter(str(error).strip().splitlines()), "")


class PeerLost(RunError):
    """Another process of the run has ended. That process or its supervisor reports the reason."""


class Interrupted(Exception):
    """A signal asked the run to stop. Raised between environment steps or gradient computations."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by signal {signal_number}")
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        """128 plus the signal number, as shells do: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.signal_number
