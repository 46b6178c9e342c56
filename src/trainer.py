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

from src import a2c, cpu_utils, ppo, seeding
from src.budget import Budget
from src.buffer import RolloutBuffer, rollout_bytes
from src.collector import Collector, join_states, part_of_state
from src.config import Config
from src.distributed import Communicator
from src.envs import make_vector_env, native_threads, spaces_of
from src.errors import RunError, UsageError
from src.gae import generalised_advantages
from src.learner import Learner
from src.metrics import Episode
from src.models import Spaces, largest_activation_bytes, make_model
from src.rewards import RewardScaler
from src.timing import PhaseTimer

logger = logging.getLogger(__name__)

ALGORITHMS: dict[str, Any] = {"ppo": ppo, "a2c": a2c, "a3c": a2c}


@dataclass
class Counters:
    updates: int = 0
    timesteps: int = 0


@dataclass(frozen=True)
class Update:
    """What an update brought: the episodes of all processes (main process only) and the figures of
    learning."""

    episodes: list[Episode]
    figures: dict[str, float | None]


class Trainer:
    """Environments, model, rollout and learner of one process, and the state that a checkpoint holds."""

    def __init__(
        self,
        config: Config,
        communicator: Communicator,
        num_threads: int,
        heartbeat: Callable[[], None],
        rollout_memory: Callable[[int], Any] | None = None,
    ) -> None:
        """Build everything. Raises UsageError if environment and network cannot be made as configured.

        `rollout_memory` gives the memory, of a size in bytes, that all processes write their part of the
        rollout into; without it the rollout lies in private memory.
        """
        self.config = config
        self.communicator = communicator
        self.num_threads = num_threads
        self.timer = PhaseTimer()
        self.counters = Counters()
        training, seed, count = config.training, config.training.seed, config.envs_per_process
        self.first_env = communicator.rank * count
        first_group = self.first_env // config.group_size
        self.groups = range(first_group, first_group + count // config.group_size)
        group_seeds = [seeding.group_seed(seed, group) for group in self.groups]
        self.env = make_vector_env(config.env, group_seeds, config.group_size, native_threads(num_threads))
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
        self.rollout, self.part = self._make_rollout(rollout_memory)
        self.collector = Collector(self.env, self.model, seed, self.first_env, self.timer, heartbeat)
        self.scaler = RewardScaler(count, training.gamma, training.reward_clip)
        self.take_state = True
        """Whether the next boundary's state is taken, so that the run can be saved there whatever happens
        later.

        The main process gathers it, and most of it is Procgen's, 40 kB an environment: several milliseconds.
        """
        self.phase_seconds: list[dict[str, float]] = []
        """Seconds by phase of every process, as of the last boundary; in the main process only."""
        self._state: dict[str, Any] = {}

    def may_begin(self, budget: Budget, elapsed: float, update_seconds: float) -> bool:
        """Whether the budget has room for another update."""
        return not budget.finished(self.counters.updates, elapsed, update_seconds)

    def _make_rollout(self, memory: Callable[[int], Any] | None) -> tuple[RolloutBuffer, RolloutBuffer]:
        """The rollout that is learned from, and the part of it that this process fills."""
        n_steps, num_envs = self.config.training.n_steps, self.config.env.num_envs
        block = memory(rollout_bytes(n_steps, num_envs, self.spaces)) if memory is not None else None
        rollout = RolloutBuffer(n_steps, num_envs, self.spaces, block)
        return rollout, rollout.columns(self.first_env, self.config.envs_per_process)

    def facts(self) -> dict[str, str]:
        """What was decided while building, for the settings that are printed."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return {
            "network": f"{type(self.model.body).__name__}, {parameters:,} parameters, observations "
            f"{self.spaces.network_shape}, {self.spaces.num_actions} actions",
            "threads": f"{self.num_threads} per process, gradients in microbatches of {self.microbatch_size}",
        }

    def iterate(self, learning_rate: float) -> Update:
        """One update: collect a rollout, compute its advantages, learn from it."""
        number = self.counters.updates
        episodes = self.collector.collect(self.part, number)
        with self.timer("wait"):
            self.communicator.barrier()
        self._compute_advantages()
        self.communicator.barrier()  # from here on every process reads what the others wrote
        self.learner.set_learning_rate(learning_rate)
        figures = self.algorithm.update(self.learner, self.rollout, self.config.training, number)
        require_finite(self.learner.parameters)
        self.counters.updates += 1
        self.counters.timesteps += self.rollout.num_samples
        if self.counters.updates % self.config.parallel.check_every == 0:
            self.communicator.require_equal(self.learner.parameters, "the parameters")
        return Update(self.exchange(episodes), figures)

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

    def exchange(self, episodes: list[Episode]) -> list[Episode]:
        """Bring every process's episodes and times to the main process, and its state if one is to be taken.

        Returns the episodes of all, by time and environment, in the main process, none elsewhere. To be
        called by all at every update boundary, with the same `take_state`.
        """
        part: dict[str, Any] = {"episodes": episodes, "phase_seconds": dict(self.timer.seconds)}
        if self.take_state:
            part["collector"] = self.collector.state()
            part["discounted_returns"] = self.scaler.returns.tolist()
            part["threads"] = torch.get_num_threads()
        parts = self.communicator.gather(part)
        if parts is None:
            return []
        self.phase_seconds = [each["phase_seconds"] for each in parts]
        if self.take_state:
            self._state = self._join(parts)
        return sorted((episode for each in parts for episode in each["episodes"]), key=lambda each: each[:2])

    def _join(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """A copy of everything that the next update depends on, from the parts of all processes."""
        return {
            "spaces": self.spaces.to_dict(),
            "learner": copy.deepcopy(self.learner.state()),
            "counters": asdict(self.counters),
            "scaler": {
                **self.scaler.state(),
                "returns": [value for part in parts for value in part["discounted_returns"]],
            },
            "collector": join_states([part["collector"] for part in parts]),
            "rng": {"torch": torch.get_rng_state()},
            "phase_seconds": self.phase_seconds,
            "threads": [part["threads"] for part in parts],
        }

    def state(self) -> dict[str, Any]:
        """The state that was taken last; in the main process only."""
        return self._state

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Raises UsageError if it was saved for other spaces or another network."""
        self._require_spaces(state)
        own = slice(self.first_env, self.first_env + self.config.envs_per_process)
        self.learner.load(state["learner"])
        self.counters = Counters(**state["counters"])
        self.scaler.load({**state["scaler"], "returns": state["scaler"]["returns"][own]})
        torch.set_rng_state(state["rng"]["torch"])
        self.timer.seconds.update(state["phase_seconds"][self.communicator.rank])
        if not self.collector.load(part_of_state(state["collector"], own)):
            if self.communicator.is_main:
                logger.warning("%s cannot be saved: the run goes on with new episodes", self.config.env.id)
            self._restart_environments()

    def _require_spaces(self, state: dict[str, Any]) -> None:
        saved = Spaces.from_dict(state["spaces"])
        if saved != self.spaces:
            raise UsageError(f"the checkpoint was saved for {saved}, the environment has {self.spaces}")

    def _restart_environments(self) -> None:
        """Begin new episodes, with seeds that the run has not used."""
        seed, update = self.config.training.seed, self.counters.updates
        group_seeds = [seeding.restart_seed(seed, group, update) for group in self.groups]
        self.collector.observations = self.env.restart(group_seeds)

    def finish(self) -> Update | None:
        """Called when the budget has ended; what was learned since the last `iterate`, if anything."""
        return None

    def close(self) -> None:
        self.env.close()


def require_finite(parameters: torch.Tensor) -> None:
    """Raise RunError if training has diverged, before such parameters are saved."""
    if not torch.isfinite(parameters).all():
        raise RunError("the parameters are not finite: training diverged")
