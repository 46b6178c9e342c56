"""One process's part of a run: its environments, the network, and how they make one update after another.

It does not know how many processes there are: its communicator does.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from src import cpu_utils, ppo, seeding
from src.buffer import RolloutBuffer
from src.collector import Collector, Episode
from src.config import Config
from src.distributed import Communicator
from src.envs import make_vector_env, spaces_of
from src.errors import UsageError
from src.gae import generalised_advantages
from src.learner import Learner
from src.models import Spaces, largest_activation_bytes, make_model
from src.rewards import RewardScaler
from src.timing import PhaseTimer

logger = logging.getLogger(__name__)

ALGORITHMS = {"ppo": ppo}


@dataclass
class Counters:
    updates: int = 0
    timesteps: int = 0
    episodes: int = 0


class Trainer:
    """Environments, model, rollout and learner of one process, and the state that a checkpoint holds."""

    def __init__(
        self, config: Config, communicator: Communicator, num_threads: int, heartbeat: Callable[[], None]
    ) -> None:
        """Build everything. Raises UsageError if environment and network cannot be made as configured."""
        self.config = config
        self.communicator = communicator
        self.num_threads = num_threads
        self.timer = PhaseTimer()
        self.counters = Counters()
        training, seed = config.training, config.training.seed
        per_process = config.env.num_envs // communicator.world_size
        self.first_env = communicator.rank * per_process
        first_group = self.first_env // config.group_size
        self.groups = range(first_group, first_group + per_process // config.group_size)
        env_threads = 0 if num_threads == 1 else 1
        self.env = make_vector_env(
            config.env,
            [seeding.group_seed(seed, group) for group in self.groups],
            config.group_size,
            env_threads,
        )
        self.spaces: Spaces = spaces_of(self.env)
        self.model = make_model(config.model, self.spaces, seed)
        self.microbatch_size = config.hardware.microbatch_size or cpu_utils.suggested_microbatch(
            largest_activation_bytes(config.model, self.spaces)
        )
        self.algorithm = ALGORITHMS[config.algorithm]
        self.learner = Learner(
            self.model,
            training,
            self.microbatch_size,
            communicator,
            self.timer,
            heartbeat,
            self.algorithm.STATISTICS,
        )
        self.rollout = RolloutBuffer(training.n_steps, config.env.num_envs, self.spaces)
        self.part = self.rollout.columns(self.first_env, per_process)
        self.collector = Collector(self.env, self.model, seed, self.first_env, self.timer, heartbeat)
        self.scaler = RewardScaler(per_process, training.gamma, training.reward_clip)

    def facts(self) -> dict[str, str]:
        """What was decided while building, for the settings that are printed."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return {
            "network": f"{type(self.model.body).__name__}, {parameters:,} parameters, observations "
            f"{self.spaces.network_shape}, {self.spaces.num_actions} actions",
            "threads": f"{self.num_threads}, gradients in microbatches of {self.microbatch_size}",
        }

    def iterate(self, learning_rate: float) -> tuple[list[Episode], dict[str, float | None]]:
        """One update: collect a rollout, compute its advantages, learn from it."""
        number = self.counters.updates
        episodes = self.collector.collect(self.part, number)
        self._compute_advantages()
        self.learner.set_learning_rate(learning_rate)
        figures = self.algorithm.update(self.learner, self.rollout, self.config.training, number)
        self.counters.updates += 1
        self.counters.timesteps += self.rollout.num_samples
        self.counters.episodes += len(episodes)
        return episodes, figures

    def _compute_advantages(self) -> None:
        part, training = self.part, self.config.training
        rewards = part.rewards
        if training.normalize_rewards:
            rewards = self.scaler.scale(rewards, part.terminated | part.truncated, self.communicator)
        part.advantages[:], part.returns[:] = generalised_advantages(
            rewards,
            part.values,
            part.bootstrap_values,
            part.terminated,
            part.truncated,
            training.gamma,
            training.gae_lambda,
        )

    def state(self) -> dict[str, Any]:
        """A copy of everything that the next update depends on."""
        return {
            "spaces": self.spaces.to_dict(),
            "learner": copy.deepcopy(self.learner.state()),
            "counters": asdict(self.counters),
            "scaler": self.scaler.state(),
            "collector": self.collector.state(),
            "rng": {"torch": torch.get_rng_state()},
            "phase_seconds": dict(self.timer.seconds),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Raises UsageError if it was saved for other spaces or another network."""
        saved = Spaces.from_dict(state["spaces"])
        if saved != self.spaces:
            raise UsageError(f"the checkpoint was saved for {saved}, the environment has {self.spaces}")
        self.learner.load(state["learner"])
        self.counters = Counters(**state["counters"])
        self.scaler.load(state["scaler"])
        torch.set_rng_state(state["rng"]["torch"])
        self.timer.seconds.update(state["phase_seconds"])
        if not self.collector.load(state["collector"]):
            self._restart_environments()

    def _restart_environments(self) -> None:
        """Begin new episodes, with seeds that the run has not used, in environments that could not be
        saved."""
        logger.warning("%s cannot be saved: the resumed run begins new episodes", self.config.env.id)
        seeds = []
        for group in self.groups:
            key = seeding.restart_seed(self.config.training.seed, group, self.counters.updates)
            seeds += seeding.environment_seeds(key, self.config.group_size)
        self.collector.observations = self.env.reset(seed=seeds)[0]

    def close(self) -> None:
        self.env.close()
