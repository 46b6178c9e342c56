"""What all commands share: the argument parser and the exit codes."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rlcb.errors import EXIT_FAILED, EXIT_USAGE, RunError, UsageError
from rlcb.processes.output import forgive_output


def exit_code(work: Callable[[], int]) -> int:
    """The exit code of a script that does `work`. Wrong input is one line on stderr and code 2."""
    forgive_output()
    logging.basicConfig(format="%(levelname)s: %(message)s")
    program = Path(sys.argv[0]).name
    try:
        return work()
    except UsageError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except RunError as error:
        print(f"{program}: failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130


def count(text: str) -> int:
    """A whole number, also written as 1e6 or 1_000_000. Raises ValueError for anything else."""
    try:
        return int(text)  # exact, where a float has 53 bits
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


class Parser(argparse.ArgumentParser):
    """Reports a wrong flag in one line, and takes no flag that is cut short."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")
