"""What all commands share: the argument parser and the exit codes."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from rlcb.cli.completion import complete, completing
from rlcb.errors import EXIT_FAILED, EXIT_USAGE, RunError, UsageError
from rlcb.processes.output import forgive_output
from rlcb.quantities import parse_count, parse_duration
from rlcb.suggestion import did_you_mean


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
    """A whole number, also written as 1M, 250k, 1e6 or 1_000_000. Raises ArgumentTypeError."""
    with _named(text):
        return parse_count(text)


def hours(text: str) -> float:
    """A time in hours: 1h30m, 30m, 90s, or a plain number of hours. Raises ArgumentTypeError."""
    with _named(text):
        return parse_duration(text, "h")


def seconds(text: str) -> float:
    """A time in seconds: 90s, 2m, or a plain number of seconds. Raises ArgumentTypeError."""
    with _named(text):
        return parse_duration(text, "s")


@contextlib.contextmanager
def _named(text: str) -> Iterator[None]:
    """Turn a ValueError into an error of argparse that names the word `text`."""
    try:
        yield
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


class Parser(argparse.ArgumentParser):
    """Reports a wrong flag in one line with the nearest known one, and takes no flag that is cut short."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices, and name the nearest one."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(value, action.choices or ())
            raise

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the command line, or print its completions and end the process if the shell asks for them."""
        if completing():
            complete(self)
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; for an unknown flag it names the nearest one."""
        raise UsageError(f"{message}{self._nearest_flag(message)} (see --help)")

    def _nearest_flag(self, message: str) -> str:
        """Return `; did you mean --FLAG?` for argparse's message about unknown words, else ""."""
        _, is_unknown, words = message.partition("unrecognized arguments: ")
        wrong = [word.partition("=")[0] for word in words.split() if word.startswith("--")]
        if not is_unknown or not wrong:
            return ""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return did_you_mean(wrong[0], [name for action in shown for name in action.option_strings])
