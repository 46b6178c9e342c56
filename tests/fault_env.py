"""An environment that misbehaves in one worker at a chosen step, for the tests of faults."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from typing import Any

import gymnasium
import numpy as np

ID = "tests.fault_env:Fault-v0"


class FaultEnv(gymnasium.Env[np.ndarray, int]):
    """Episodes of ten steps. At step `at` it does `fault`, in the process named `process` only;
    `make` and `vanish` are done before."""

    def __init__(
        self, fault: str = "none", at: int = 20, process: str = "MainProcess", delay: float = 0.0
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.fault = fault if multiprocessing.current_process().name == process else "none"
        self.at = at
        self.delay = delay
        self.steps = 0
        if self.fault == "make":
            raise ValueError("no such world")
        if self.fault == "vanish":
            os._exit(7)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.delay:
            time.sleep(self.delay)
        reward = float(action)
        if self.steps == self.at:
            if self.fault == "raise":
                raise ValueError("the world ended")
            if self.fault == "exit":
                os._exit(7)
            if self.fault == "kill":
                os.kill(os.getpid(), 9)
            if self.fault == "hang":
                time.sleep(10_000)
            if self.fault == "nan":
                reward = math.nan
            if self.fault == "leave":
                raise SystemExit(0)
            if self.fault == "interrupt":
                raise KeyboardInterrupt
            if self.fault == "shape":
                return np.zeros(5, np.float32), reward, False, False, {}
        return self._observation(), reward, self.steps % 10 == 0, False, {}


gymnasium.register("Fault-v0", entry_point=FaultEnv)
