"""An environment with long observations and nothing to learn, for the tests of large rollouts."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SIZE = 4096


class WideEnv(gymnasium.Env[np.ndarray, int]):
    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (SIZE,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(SIZE, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full(SIZE, self.steps % 2, np.float32), 1.0, self.steps % 10 == 0, False, {}


gymnasium.register("Wide-v0", entry_point=WideEnv)
