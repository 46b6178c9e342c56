"""Environments with known episode lengths and CartPole's spaces, for the evaluator's tests."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

BY_SEED = "tests.episode_env:EpisodeBySeed-v0"
ENDLESS = "tests.episode_env:EpisodeEndless-v0"
LIMITED = "tests.episode_env:EpisodeLimited-v0"
LIMIT = 7


def length_of(seed: int) -> int:
    return 1 + seed % 50


class EpisodeEnv(gymnasium.Env[np.ndarray, int]):
    """Gives reward 1 at every step. Its first seed sets the length of all episodes, unless `endless`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(self, endless: bool = False, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.render_mode = render_mode
        self.length = 10**9 if endless else None
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if self.length is None and seed is not None:
            self.length = length_of(seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        assert self.length is not None
        return np.full(4, self.steps, np.float32), 1.0, self.steps >= self.length, False, {}

    def render(self) -> np.ndarray:
        """Return a frame of odd height whose brightness is ten times the step."""
        return np.full((61, 80, 3), 10 * self.steps, np.uint8)


gymnasium.register("EpisodeBySeed-v0", entry_point=EpisodeEnv)
gymnasium.register("EpisodeEndless-v0", entry_point=EpisodeEnv, kwargs={"endless": True})
gymnasium.register(
    "EpisodeLimited-v0", entry_point=EpisodeEnv, kwargs={"endless": True}, max_episode_steps=LIMIT
)
