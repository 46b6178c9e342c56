"""An environment that misbehaves on one rank of a distributed run, which that rank's surroundings say."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ID = "tests.rank_env:Rank-v0"


class RankEnv(gymnasium.Env[np.ndarray, int]):
    """Episodes of ten steps. At step `at` it does `fault` where RANK or TEST_RANK is `rank`, and, with
    `once`, only if that file is not there yet; it makes it."""

    def __init__(
        self, fault: str = "none", at: int = 40, rank: int = 1, once: str | None = None, delay: float = 0.0
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        here = os.environ.get("RANK", os.environ.get("TEST_RANK")) == str(rank)
        self.fault = fault if here else "none"
        self.at, self.once, self.delay, self.steps = at, once, delay, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.delay:
            time.sleep(self.delay)
        if self.fault != "none" and self.steps == self.at and not (self.once and Path(self.once).exists()):
            if self.once:
                Path(self.once).touch()
            if self.fault == "raise":
                raise ValueError("the world ended")
            if self.fault == "kill":
                os.kill(os.getpid(), 9)
            if self.fault == "hang":
                time.sleep(10_000)
        return self._observation(), float(action), self.steps % 10 == 0, False, {}


gymnasium.register("Rank-v0", entry_point=RankEnv)
