"""The packages of Atari and MiniGrid, which are extras: which ids they have, and how to load them."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from rlcb.errors import UsageError


class EnvPackage(NamedTuple):
    """A package whose environments are registered with Gymnasium when it is imported."""

    extra: str
    """The extra of this project that installs it."""
    modules: tuple[str, ...]
    prefixes: tuple[str, ...]
    """How the ids of its environments begin."""


ATARI = EnvPackage("atari", ("ale_py", "cv2"), ("ALE/",))
MINIGRID = EnvPackage("minigrid", ("minigrid",), ("MiniGrid-", "BabyAI-"))


def package_of(env_id: str) -> EnvPackage | None:
    """Return the package of an id such as `ALE/Pong-v5`, also after `module:`; None for all other ids."""
    name = env_id.rpartition(":")[2]
    return next((each for each in (ATARI, MINIGRID) if name.startswith(each.prefixes)), None)


def load_package(env_id: str) -> None:
    """Import the package that registers `env_id`, if it is one of the extras.

    Raises UsageError, which names the extra, if the package is not installed.
    """
    package = package_of(env_id)
    if package is None:
        return
    try:
        modules = [importlib.import_module(name) for name in package.modules]
    except ImportError as error:
        raise UsageError(
            f'{env_id} needs the extra {package.extra}: pip install ".[{package.extra}]" ({error})'
        ) from None
    if package is ATARI:
        ale_py, cv2 = modules
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no greeting for each environment
        cv2.setNumThreads(1)  # the processes of a run share the cores among themselves
