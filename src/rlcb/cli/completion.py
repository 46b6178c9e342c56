"""Tab completion of commands, flags and values, with argcomplete.

The shell starts the program with `_ARGCOMPLETE` in its environment and the command line so far in
`COMP_LINE`. The program builds its parser, and argcomplete prints what may follow instead of running it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable

from rlcb.config.algorithms import ALGORITHMS
from rlcb.config.games import GAMES, GAMES_WITH_MODE

VARIABLE = "_ARGCOMPLETE"


def setting_keys() -> list[str]:
    """Return `section.key=` for every setting in a section."""
    from rlcb.config.config import Config, flat_settings

    return [f"{key}=" for key in flat_settings(Config()) if "." in key]


VALUES: dict[str, Callable[[], Iterable[str]]] = {
    "--algorithm": lambda: ALGORITHMS,
    "--distribution-mode": lambda: GAMES_WITH_MODE,
    "--env": lambda: GAMES,
    "--envs": lambda: GAMES,
    "--set": setting_keys,
    "--trace": lambda: (f"{name}_{mode}" for name, each in ALGORITHMS.items() for mode in each.modes),
}
"""What may follow a flag that also takes other values. Flags with `choices` need no entry."""


def completing() -> bool:
    """Whether the shell asks for completions instead of running the command."""
    return VARIABLE in os.environ


def typed_words() -> list[str]:
    """Return the complete words of the command line, after the program's name."""
    from argcomplete.lexers import split_line

    words = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3]
    return list(words[int(os.environ[VARIABLE]) :])


def skip_word() -> None:
    """Let completion start one word later, after the name of a command."""
    os.environ[VARIABLE] = str(int(os.environ[VARIABLE]) + 1)


def completer(values: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """Return a function that argcomplete calls for the values of a flag."""
    return lambda **_: list(values())


def complete(parser: argparse.ArgumentParser) -> None:
    """Print what may follow the words so far, and end the process."""
    import argcomplete

    for action in parser._actions:
        for name in action.option_strings:
            if name in VALUES and action.choices is None:
                action.completer = completer(VALUES[name])  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)
