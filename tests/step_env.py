"""An environment that can be counted: every observation says whose it is and which step, and rewards come
last."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ID = "tests.step_env:Step-v0"
HALF = 2**16


class StepEnv(gymnasium.Env[np.ndarray, int]):
    """Episodes of `length` steps, of which only the last (0) or number `rewarded` brings a reward: 1 for
    action 1, or whatever the action was with `free`.

    Observations are (the seed's upper half, its lower half, steps since that seed), exact in float32. The
    process named `slow` (or all) takes `delay` seconds a step. The one named `process` does `fault` at its
    step `at`, once only if `marker` names a file, which then says that it was done.
    """

    def __init__(
        self,
        length: int = 4,
        rewarded: int = 0,
        free: bool = True,
        slow: str = "",
        delay: float = 0.0,
        fault: str = "",
        at: int = 6,
        process: str = "",
        marker: str = "",
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(0, math.inf, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length = length
        self.rewarded = rewarded
        self.free = free
        name = multiprocessing.current_process().name
        self.delay = delay if slow in (name, "all") else 0.0
        self.fault = fault if process == name else ""
        self.at = at
        self.marker = marker
        self.seed = 0
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.steps = seed, 0
        return self._observation(), {}

    def _observation(self) -> np.ndarray:
        return np.array([*divmod(self.seed, HALF), self.steps], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.delay:
            time.sleep(self.delay)
        if self.fault and self.steps == self.at:
            self._fail()
        last = self.steps % self.length == 0
        due = self.steps % self.length == self.rewarded
        return self._observation(), float(due and (self.free or action == 1)), last, False, {}

    def _fail(self) -> None:
        if self.marker:
            if Path(self.marker).exists():
                return
            Path(self.marker).write_text("done", encoding="utf-8")
        if self.fault == "raise":
            raise ValueError("the world ended")
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "kill":
            os.kill(os.getpid(), 9)
        if self.fault == "hang":
            time.sleep(10_000)


gymnasium.register("Step-v0", entry_point=StepEnv)
