"""The environments of one IMPALA actor and its copy of the network: together they write unrolls.

Actors of the learner's machine (impala_actor.py) and of other machines (remote_actor.py) use it alike.
T is training.n_steps, E the environments of an actor, P the parameters of the network.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from rlcb import cpu, seeding
from rlcb.config.config import Config
from rlcb.envs.spaces import Spaces
from rlcb.envs.vector_env import groups_of, make_vector_env, native_threads, spaces_of
from rlcb.rl.collector import Collector
from rlcb.rl.learner import flatten_parameters
from rlcb.rl.models import make_model
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.statistics import Episode
from rlcb.rl.timing import PhaseTimer


class UnrollWriter:
    """Steps E environments with a network and writes unrolls."""

    collector: Collector
    parameters: torch.Tensor
    """The network's parameters [P]: what overwrites them acts in the next unroll."""

    def __init__(self, config: Config, first_env: int) -> None:
        """Make environments and network. `first_env` is the number of the first environment in the run.

        Raises UsageError if the environments cannot be made.
        """
        self.config = config
        self.first_env = first_env
        self.timer = PhaseTimer()
        cpu.set_torch_threads(1)
        run_envs = range(first_env, first_env + config.envs_per_process)
        self.groups, envs = groups_of(run_envs, config.group_size)
        seed = config.training.seed
        seeds = [seeding.group_seed(seed, group) for group in self.groups]
        self.env = make_vector_env(config.env, seeds, config.group_size, native_threads(1), envs=envs)
        self.spaces: Spaces = spaces_of(self.env)
        self.model = make_model(config.model, self.spaces, seed, config.hardware.kernels)
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())

    def reset(self, heartbeat: Callable[[], None]) -> None:
        """Make the first reset of the environments. `heartbeat` is called before every step and may raise."""
        self.parameters = flatten_parameters(self.model, torch.zeros(self.num_parameters))
        seed = self.config.training.seed
        self.collector = Collector(self.env, self.model, seed, self.first_env, self.timer, heartbeat)

    def restart(self, begun: int) -> None:
        """Start new episodes with a seed that the run has not used: `begun` unrolls came before."""
        seed = self.config.training.seed
        seeds = [seeding.restart_seed(seed, group, begun) for group in self.groups]
        self.collector.observations = self.env.restart(seeds)

    def write(self, unroll: RolloutBuffer, number: int) -> list[Episode]:
        """Write one unroll [T, E, ...], this actor's number `number`; return the episodes that ended.

        The learner computes the values behind its last step.
        """
        return self.collector.collect(unroll, number, last_values=False)

    def close(self) -> None:
        self.env.close()
