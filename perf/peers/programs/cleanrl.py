"""CleanRL's own ppo_procgen.py as its package has it, with a case's sizes; its other settings are its own.

They are those of the Procgen paper: the loss of the value clipped, all levels of the game. Its observations
are float32 in the order in which Procgen gives them, so its convolutions run in channels_last by themselves.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import gym
import numpy as np
import torch

from perf.peers.programs.protocol import GAME, Reporter, settings

MODULE = "cleanrl.ppo_procgen"
END_OF_UPDATE = "SPS:"  # what it prints then, with its average rate


def num_parameters() -> int:
    """Return the number of parameters of CleanRL's agent, which needs only the environments' spaces."""
    spaces = SimpleNamespace(
        single_observation_space=gym.spaces.Box(0, 255, (64, 64, 3), np.uint8),
        single_action_space=gym.spaces.Discrete(15),
    )
    return sum(each.numel() for each in importlib.import_module(MODULE).Agent(spaces).parameters())


class Output:
    """Takes the place of stdout: says how far it is after every update, and drops the rest."""

    def __init__(self, reporter: Reporter, timesteps_per_update: int) -> None:
        self.reporter = reporter
        self.timesteps_per_update = timesteps_per_update
        self.updates = 0

    def write(self, text: str) -> int:
        if text.startswith(END_OF_UPDATE):
            self.updates += 1
            self.reporter.progress(self.updates * self.timesteps_per_update)
        return len(text)

    def flush(self) -> None:
        """There is nothing to flush: what is said goes past this."""


def flags(given: dict[str, Any]) -> list[str]:
    batch = given["num_envs"] * given["n_steps"]
    named = {
        "env-id": GAME,
        "num-envs": given["num_envs"],
        "num-steps": given["n_steps"],
        "num-minibatches": batch // given["batch_size"],
        "update-epochs": given["n_epochs"],
        "learning-rate": given["learning_rate"],
        "total-timesteps": 10**9,
        "cuda": False,
    }
    return [f"--{name}={value}" for name, value in named.items()]


def main() -> None:
    given = settings()
    reporter = Reporter(num_parameters(), torch.get_num_threads(), ("cleanrl", "gym"))
    sys.argv = ["ppo_procgen.py", *flags(given)]
    sys.stdout = Output(reporter, given["num_envs"] * given["n_steps"])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # it writes curves into runs/
        runpy.run_module(MODULE, run_name="__main__")


if __name__ == "__main__":
    main()
