"""An environment that takes its time to be made, so that a test can do something while a run starts."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import gymnasium

from tests.fault_env import FaultEnv

ID = "tests.slow_start_env:SlowStart-v0"
SECONDS = 0.5


class SlowStartEnv(FaultEnv):
    """In processes whose names end in 1 it takes twice as long: the others wait for those."""

    def __init__(self, **kwargs: Any) -> None:
        time.sleep(SECONDS * (2 if multiprocessing.current_process().name.endswith("1") else 1))
        super().__init__(**kwargs)


gymnasium.register("SlowStart-v0", entry_point=SlowStartEnv)
