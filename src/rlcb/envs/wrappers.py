"""The wrappers around a Gymnasium environment: Atari's and MiniGrid's preprocessing, then the user's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from rlcb.config.env_packages import MINIGRID, package_of
from rlcb.config.settings import EnvConfig
from rlcb.config.wrappers import wrapper_and_arguments
from rlcb.envs import atari
from rlcb.errors import UsageError, first_line

Env = gymnasium.Env[Any, Any]
MakeWrapper = Callable[[Env], gymnasium.Wrapper[Any, Any, Any, Any]]


def wrappers_of(config: EnvConfig) -> list[MakeWrapper]:
    """Return the functions that wrap an environment, in their order: the preprocessing, then env.wrappers.

    Raises UsageError, which names the entry of env.wrappers, if it cannot be imported or is no wrapper.
    """
    own = [_user_wrapper(index, entry) for index, entry in enumerate(config.wrappers)]
    return [*_preprocessing(config), *own]


def make_arguments(config: EnvConfig) -> dict[str, Any]:
    """Return the keyword arguments for gymnasium.make: the user's own, and what the preprocessing needs."""
    if config.atari is None:
        return dict(config.kwargs)
    # The wrapper skips the frames, and reads grey ones itself. With obs_type rgb the emulator would also
    # convert every frame to colours, which nobody sees.
    return {**config.kwargs, "frameskip": 1, "obs_type": "grayscale"}


def _preprocessing(config: EnvConfig) -> list[MakeWrapper]:
    if config.atari is not None:
        return [partial(atari.preprocess, options=config.atari)]
    if config.preprocessing and _is_minigrid(config.id):
        from rlcb.envs.minigrid import OneHotView  # loads MiniGrid

        return [OneHotView]
    return []


def _is_minigrid(env_id: str) -> bool:
    """Whether the preprocessing of MiniGrid applies: not to BabyAI, whose missions it would leave out."""
    return package_of(env_id) is MINIGRID and env_id.rpartition(":")[2].startswith("MiniGrid-")


def _user_wrapper(index: int, entry: str | dict[str, Any]) -> MakeWrapper:
    """Return the function that applies an entry of env.wrappers."""
    name, arguments = wrapper_and_arguments(entry)
    where = f"env.wrappers.{index} = {name!r}"
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing a module can raise anything
        raise UsageError(
            f"{where}: cannot be imported ({first_line(error) or type(error).__name__})"
        ) from error
    if isinstance(found, type) and issubclass(found, gymnasium.vector.VectorWrapper):
        raise UsageError(f"{where}: wraps vector environments, and env.wrappers single ones")
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        raise UsageError(f"{where}: is not a subclass of gymnasium.Wrapper")

    def wrap(env: Env) -> gymnasium.Wrapper[Any, Any, Any, Any]:
        try:
            return found(env, **arguments)
        except Exception as error:  # the constructor's errors are about the arguments or the environment
            reason = first_line(error) or type(error).__name__
            raise UsageError(f"{where}: cannot wrap {env} ({reason})") from error

    return wrap
