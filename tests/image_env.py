"""A small image environment: a bright square in one of four corners, which the action has to name."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

ID = "tests.image_env:Corner-v0"
SIZE, LENGTH, CORNERS = 16, 10, 4


class CornerEnv(gymnasium.Env[np.ndarray, int]):
    """Ten steps, one point for each right answer: chance gives 2.5, the best policy 10."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(CORNERS)
        self.steps = 0
        self.corner = 0

    def _observe(self) -> np.ndarray:
        self.corner = int(self.np_random.integers(CORNERS))
        image = self.np_random.integers(0, 100, (SIZE, SIZE, 3), dtype=np.uint8)
        row, column = divmod(self.corner, 2)
        top, left = row * SIZE // 2 + 2, column * SIZE // 2 + 2
        image[top : top + 4, left : left + 4] = 255
        return image

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.corner)
        self.steps += 1
        return self._observe(), reward, self.steps == LENGTH, False, {}


gymnasium.register("Corner-v0", entry_point=CornerEnv)
