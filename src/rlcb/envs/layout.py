"""Which spaces the networks accept, and which wrapper helps with the others."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces

from rlcb.config.env_packages import MINIGRID, package_of
from rlcb.errors import UsageError

FLATTEN = "gymnasium.wrappers:FlattenObservation"
IMAGE_OF_MINIGRID = "minigrid.wrappers:ImgObsWrapper"
BINS = 5  # of the example


def observation_layout(space: gymnasium.Space[Any], env_id: str) -> str:
    """Return the axes of an observation: D for vectors; HWC, CHW or HW for images.

    Raises UsageError for other spaces. It names the wrapper that would help, if there is one.
    """
    if isinstance(space, spaces.Box):
        shape = space.shape
        if len(shape) == 1:
            return "D"
        if len(shape) == 2:
            return "HW"
        if len(shape) == 3:
            return "CHW" if shape[0] < min(shape[1:]) else "HWC"  # an image has fewer channels than pixels
    described = f"Box{space.shape}" if isinstance(space, spaces.Box) else " ".join(str(space).split())
    raise UsageError(
        f"environment {env_id!r} has observations {described}; supported are images (Box of 2 or 3 axes) and "
        f"vectors (Box of 1 axis); {_observation_wrapper(space, env_id)}"
    )


def require_discrete(space: gymnasium.Space[Any], env_id: str) -> None:
    """Raise UsageError unless actions are Discrete. It names the wrapper that would help, if there is one."""
    if isinstance(space, spaces.Discrete):
        return
    advice = "a wrapper of your own in env.wrappers could map Discrete actions to them"
    if isinstance(space, spaces.Box) and space.is_bounded():
        count = BINS ** int(space.low.size)
        wrapper = f'{{wrapper: "gymnasium.wrappers:DiscretizeAction", bins: {BINS}}}'
        advice = f"{_setting(wrapper)} makes {count:,} Discrete actions of them, {BINS} for each axis"
    raise UsageError(
        f"environment {env_id!r} has actions {space}; only Discrete actions are supported; {advice}"
    )


def _observation_wrapper(space: gymnasium.Space[Any], env_id: str) -> str:
    """Return the advice for an observation space that is not supported."""
    if isinstance(space, spaces.Dict):
        if package_of(env_id) is MINIGRID and "image" in space.spaces:
            return f"{_setting(_quoted(IMAGE_OF_MINIGRID))} takes the image alone, without the mission"
        keys = [key for key, part in space.items() if part.is_np_flattenable]
        chosen = f'{{wrapper: "gymnasium.wrappers:FilterObservation", filter_keys: [{", ".join(keys)}]}}'
        if space.is_np_flattenable:
            return (
                f"{_setting(_quoted(FLATTEN))} makes one vector of all keys; {chosen} before it chooses some"
            )
        if keys:
            return f"{_setting(f'{chosen}, {_quoted(FLATTEN)}')} makes one vector of these keys"
    elif space.is_np_flattenable:
        return f"{_setting(_quoted(FLATTEN))} makes a vector of them"
    return "a wrapper of your own in env.wrappers could make a vector of them"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _setting(wrappers: str) -> str:
    return f"--set 'env.wrappers=[{wrappers}]'"
