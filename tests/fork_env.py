"""A small environment in which an old policy's opinion of a way is misleading: it cannot yet walk it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

ID = "tests.fork_env:Fork-v0"
ACTIONS, SAFE = 4, 0.4


class ForkEnv(gymnasium.Env[np.ndarray, int]):
    """At the fork actions 0 and 1 end the episode with 0.4; 2 and 3 lead to a door, which action 0 opens for
    1 point and all others leave shut for none. Who acts at random gets 0.25 behind the fork, who can open the
    door 1."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)
        self.at_door = False

    def _observe(self) -> np.ndarray:
        return np.array([not self.at_door, self.at_door], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at_door = False
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.at_door:
            return self._observe(), float(action == 0), True, False, {}
        if action < 2:
            return self._observe(), SAFE, True, False, {}
        self.at_door = True
        return self._observe(), 0.0, False, False, {}


gymnasium.register("Fork-v0", entry_point=ForkEnv)
