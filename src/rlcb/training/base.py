"""What every process that learns has: the network, its learner, the counters, and the state that is saved."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rlcb import cpu
from rlcb.config.budget import Budget
from rlcb.config.config import Config
from rlcb.envs.spaces import Spaces
from rlcb.errors import RunError, UsageError
from rlcb.rl import a2c, impala, ppo
from rlcb.rl.communicator import Communicator
from rlcb.rl.learner import Learner
from rlcb.rl.models import largest_activation_bytes, make_model
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.statistics import Episode
from rlcb.rl.timing import PhaseTimer

logger = logging.getLogger(__name__)


class AlgorithmModule(Protocol):
    """The interface of an algorithm's module in `rl/`."""

    @property
    def USES_GAE(self) -> bool:
        """Whether the rollout needs advantages and returns before `update`."""

    @property
    def STATISTICS(self) -> tuple[str, ...]:
        """The statistics that the loss function returns beside the loss."""

    def update(
        self, learner: Learner, rollout: RolloutBuffer, config: Config, update_number: int
    ) -> dict[str, float | None]:
        """Learn from a finished rollout and return the metrics of the update."""


UPDATES: dict[str, AlgorithmModule] = {"ppo": ppo, "a2c": a2c, "a3c": a2c, "impala": impala}


@dataclass
class Counters:
    updates: int = 0
    timesteps: int = 0


@dataclass(frozen=True)
class Update:
    """What an update brought: the episodes of all processes (main process only) and the metrics of
    learning."""

    episodes: list[Episode]
    metrics: dict[str, float | None]


class LearningProcess:
    """A process's network and learner, and how far the run has come. What it learns from is for its kinds to
    say: training/trainer.py, parallel/a3c.py, parallel/impala_learner.py."""

    def __init__(
        self,
        config: Config,
        communicator: Communicator,
        num_threads: int,
        heartbeat: Callable[[], None],
        timer: PhaseTimer,
        spaces: Spaces,
    ) -> None:
        """Raises UsageError if the network cannot be made as configured."""
        self.config = config
        self.communicator = communicator
        self.num_threads = num_threads
        self.timer = timer
        self.spaces = spaces
        self.counters = Counters()
        self.model = make_model(config.model, spaces, config.training.seed)
        if config.model.precision == "bfloat16" and communicator.is_main and not cpu.has_bfloat16():
            logger.warning("model.precision = 'bfloat16' is slow: this processor has no instructions for it")
        self.microbatch_size = config.hardware.microbatch_size or cpu.suggested_microbatch(
            largest_activation_bytes(config.model, spaces)
        )
        self.algorithm = UPDATES[config.algorithm]
        self.learner = Learner(
            self.model,
            config.training,
            self.microbatch_size,
            communicator,
            timer,
            heartbeat,
            self.algorithm.STATISTICS,
        )
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

    def facts(self) -> dict[str, str]:
        """What was decided while building, for the settings that are printed."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return {
            "network": f"{type(self.model.body).__name__}, {parameters:,} parameters, observations "
            f"{self.spaces.network_shape}, {self.spaces.num_actions} actions, {self.config.model.precision}",
            "threads": f"{self.num_threads} per process, gradients in microbatches of {self.microbatch_size}",
        }

    def iterate(self, learning_rate: float) -> Update:
        """One update."""
        raise NotImplementedError

    def count_update(self, timesteps: int) -> None:
        """Take an update that learned from `timesteps` into the counters. Raises RunError if it went
        wrong."""
        require_finite(self.learner.parameters)
        self.counters.updates += 1
        self.counters.timesteps += timesteps
        if self.counters.updates % self.config.parallel.check_every == 0:
            self.communicator.require_equal(self.learner.parameters, "the parameters")

    def exchange(self, episodes: list[Episode]) -> list[Episode]:
        """Bring every process's episodes and times to the main process, and its state if one is to be taken.

        Returns the episodes of all, by time and environment, in the main process, none elsewhere. To be
        called by all at every update boundary, with the same `take_state`.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The state that was taken last; in the main process only."""
        return self._state

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Raises UsageError if it was saved for other spaces or another network."""
        raise NotImplementedError

    def require_spaces(self, state: dict[str, Any]) -> None:
        saved = Spaces.from_dict(state["spaces"])
        if saved != self.spaces:
            raise UsageError(f"the checkpoint was saved for {saved}, the environment has {self.spaces}")

    def process_names(self) -> list[str]:
        """What the processes of `phase_seconds` are called, in the same order."""
        names = list(self.communicator.names)
        return names or [self.config.process_name(rank) for rank in range(self.config.num_ranks)]

    def finish(self) -> Update | None:
        """Called when the budget has ended; what was learned since the last `iterate`, if anything."""
        return None

    def metrics(self) -> dict[str, Any]:
        """What only this kind of process can add to the record of the run."""
        return {}

    def close(self) -> None:
        """Leave nothing behind."""


def slowest_rank(communicator: Communicator, busy: list[float]) -> dict[str, Any]:
    """In a distributed run, the rank that the others wait for: the one that is busy longest. `busy` is
    seconds by rank."""
    if not communicator.names:
        return {}
    slowest = busy.index(max(busy))
    return {
        "slowest_rank": {
            "name": communicator.names[slowest],
            "busy_seconds": round(busy[slowest], 3),
            "mean_busy_seconds": round(sum(busy) / len(busy), 3),
            "nodes": communicator.num_nodes,
        }
    }


def require_finite(parameters: torch.Tensor) -> None:
    """Raise RunError if training has diverged, before such parameters are saved."""
    if not all(math.isfinite(float(each)) for each in parameters.aminmax()):  # NaN is passed on by both
        raise RunError("the parameters are not finite: training diverged")
