"""The names of Procgen's games and their distribution modes. Importing this module loads nothing heavy."""

from __future__ import annotations

import importlib

from rlcb.config.env_packages import load_package
from rlcb.errors import UsageError, first_line
from rlcb.suggestion import did_you_mean

GAMES = (
    "bigfish",
    "bossfight",
    "caveflyer",
    "chaser",
    "climber",
    "coinrun",
    "dodgeball",
    "fruitbot",
    "heist",
    "jumper",
    "leaper",
    "maze",
    "miner",
    "ninja",
    "plunder",
    "starpilot",
)
# Procgen ends the process if a game does not have the distribution mode.
GAMES_WITH_MODE = {
    "easy": GAMES,
    "hard": GAMES,
    "extreme": ("chaser", "dodgeball", "leaper", "starpilot"),
    "memory": ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
    "exploration": ("caveflyer", "climber", "coinrun", "heist", "jumper", "leaper", "maze", "ninja"),
}
MAX_LEVEL = 2**31 - 1  # level numbers have 31 bits


def procgen_game(env_id: str) -> str | None:
    """Return the game of an id such as `coinrun`, `procgen-coinrun-v0` or `procgen:procgen-coinrun-v0`.

    None if it is not a Procgen game.
    """
    name = env_id.removeprefix("procgen:").removeprefix("procgen-").removesuffix("-v0")
    return name if name in GAMES else None


def canonical_id(env_id: str) -> str:
    """Return `procgen-<game>-v0` for any form of a Procgen game's name; other ids unchanged."""
    game = procgen_game(env_id)
    return f"procgen-{game}-v0" if game else env_id


def similar_game(env_id: str) -> str:
    """Return `; did you mean GAME?` for an unknown id that resembles a Procgen game; "" for others."""
    name = env_id.removeprefix("procgen:").removeprefix("procgen-").removesuffix("-v0")
    return did_you_mean(name, GAMES)


def check_environment(env_id: str, flag: str) -> None:
    """Raise UsageError if an id is neither a Procgen game nor registered with Gymnasium.

    `flag` is the command-line flag that the message names. An id `gym:<id>` is checked only when the
    environment is made. The message names the extra that has the environment if it is not installed.
    """
    if procgen_game(env_id) or env_id.startswith("gym:"):
        return
    load_package(env_id)
    import gymnasium  # slow to import, and not needed for Procgen

    module, separator, name = env_id.partition(":")
    try:
        if separator:
            importlib.import_module(module)
        gymnasium.spec(name if separator else env_id)
    except Exception as error:  # importing a module can raise anything
        raise UsageError(
            f"{flag} {env_id}: {first_line(error) or type(error).__name__}; possible are a Procgen game "
            f"({', '.join(GAMES)}), a Gymnasium id such as CartPole-v1, or gym:<id>{similar_game(env_id)}"
        ) from None
