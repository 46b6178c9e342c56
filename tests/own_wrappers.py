"""Wrappers as users write them, for the tests of env.wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Plus(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Adds a number to every observation."""

    def __init__(self, env: gymnasium.Env[Any, Any], number: float = 1.0) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(
            -np.inf, np.inf, env.observation_space.shape, np.float32
        )
        self.number = number

    def observation(self, observation: Any) -> Any:
        return np.float32(observation + self.number)


class Double(Plus):
    """Doubles every observation."""

    def observation(self, observation: Any) -> Any:
        return np.float32(2 * observation)


class RewardTimes(gymnasium.RewardWrapper[Any, Any]):
    """Multiplies every reward."""

    def __init__(self, env: gymnasium.Env[Any, Any], factor: float) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return float(reward) * self.factor


class NoWrapper:
    """A class that has nothing to do with environments."""

    def __init__(self, env: Any) -> None: ...


def function(env: Any) -> Any:
    return env
