"""The base of every learning process: network, learner, counters, and the state that checkpoints hold."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

REWARD_PER_STEP = "rollout/reward_per_step"
"""The metric of the mean raw reward of a timestep. Unlike means over episodes, it also counts the rewards of
episodes that have not ended."""


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
"""The module of each algorithm."""


@dataclass
class Counters:
    """Updates and timesteps of a run, including those before it was resumed."""

    updates: int = 0
    timesteps: int = 0


@dataclass(frozen=True)
class Update:
    """The outcome of one update."""

    episodes: list[Episode]
    """The episodes that ended, of all processes; empty outside of the main process."""
    metrics: dict[str, float | None]
    """The metrics of learning, by their names in metrics.jsonl without `train/`."""
    notes: Sequence[str] = ()
    """Lines to print, such as who joined the run."""


@dataclass(frozen=True)
class ProcessSetup:
    """What a learning process is made from; the defaults are for a process that trains alone."""

    config: Config
    communicator: Communicator = field(default_factory=Communicator)
    """Connects the processes that learn."""
    num_threads: int = 1
    """Threads of each process."""
    heartbeat: Callable[[], None] = lambda: None
    """Called between environment steps and between microbatches; it may raise to stop the run."""
    shared_memory: Callable[[int], Any] | None = None
    """Returns a buffer of so many bytes that all processes of the node share; None: use private memory."""


class LearningProcess:
    """One process's network, learner and counters; the run loop (training/run.py) drives it.

    Subclasses provide the data: Trainer (training/trainer.py), A3CTrainer (parallel/a3c.py) and
    ImpalaLearner (parallel/impala_learner.py).
    """

    def __init__(self, setup: ProcessSetup, spaces: Spaces) -> None:
        """Build network and learner. Raises UsageError if the network cannot be made as configured."""
        self.setup = setup
        self.config = config = setup.config
        self.communicator = communicator = setup.communicator
        self.timer = PhaseTimer()
        self.spaces = spaces
        self.counters = Counters()
        self.model = make_model(config.model, spaces, config.training.seed, config.hardware.kernels)
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
            communicator.learners(),
            self.timer,
            setup.heartbeat,
            self.algorithm.STATISTICS,
        )
        self.take_state = True
        """Whether the main process collects the state of all processes at the next update boundary.

        The run can then be saved as of that boundary, whatever happens later. It takes several milliseconds,
        mostly for Procgen's states of 40 kB per environment.
        """
        self.phase_seconds: list[dict[str, float]] = []
        """Seconds by phase of every process at the last update boundary; in the main process only."""
        self._state: dict[str, Any] = {}

    def shared_memory(self, size: int) -> Any:
        """Return at least `size` bytes that all processes of the node share, and sum through those behind
        them. Memory on disk is not for sums."""
        assert self.setup.shared_memory is not None
        on_disk = self.config.parallel.buffer == "mmap"
        extra = 0 if on_disk else self.communicator.memory_for_sums(self.learner.sums.nbytes)
        block = self.setup.shared_memory(size + extra)
        if extra:
            self.communicator.use_memory(memoryview(block)[size:])
        return block

    def may_begin(self, budget: Budget, elapsed: float, update_seconds: float) -> bool:
        """Return whether the budget has room for another update."""
        return not budget.finished(self.counters.updates, elapsed, update_seconds)

    def facts(self) -> dict[str, str]:
        """Return what the constructor decided, as {name: text} for the settings that a run prints."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        reason = self.model.why_not_native
        return {
            "network": f"{type(self.model.body).__name__}, {parameters:,} parameters, observations "
            f"{self.spaces.network_shape}, {self.spaces.num_actions} actions, {self.config.model.precision}",
            "kernels": self.model.kernels
            if reason is None
            else f"torch, because there are no native ones: {reason}",
            "threads": f"{self.setup.num_threads} per process, gradients in microbatches of "
            f"{self.microbatch_size}",
            **self.communicator.facts(),
        }

    def iterate(self, learning_rate: float) -> Update:
        """Make one update with this learning rate."""
        raise NotImplementedError

    def count_update(self, timesteps: int) -> None:
        """Count an update that learned from `timesteps` timesteps.

        Raises RunError if the parameters are not finite or, every `check_every` updates, if they differ
        between processes.
        """
        require_finite(self.learner.parameters)
        self.counters.updates += 1
        self.counters.timesteps += timesteps
        updates = self.counters.updates
        if updates % self.config.parallel.check_every == 0 and self.nodes_agree_after(updates):
            self.communicator.require_equal(self.learner.parameters, "the parameters")

    def nodes_agree_after(self, updates: int) -> bool:
        """Whether all nodes have the same parameters after so many updates: not between two averages."""
        return True

    def exchange(self, episodes: list[Episode]) -> list[Episode]:
        """Send this process's episodes, phase times and, with `take_state`, state to the main process.

        Returns the episodes of all processes, sorted by step and environment, in the main process, and an
        empty list in the others. Every process calls this at every update boundary with the same
        `take_state`.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return the state that `exchange` took last; empty outside of the main process."""
        return self._state

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. Raises UsageError if its spaces or its network are different."""
        raise NotImplementedError

    def require_spaces(self, state: dict[str, Any]) -> None:
        """Raise UsageError if a saved state has other observation or action spaces."""
        saved = Spaces.from_dict(state["spaces"])
        if saved != self.spaces:
            raise UsageError(f"the checkpoint was saved for {saved}, the environment has {self.spaces}")

    def process_names(self) -> list[str]:
        """Return the names of the processes, in the order of `phase_seconds`."""
        names = list(self.communicator.names)
        return names or [self.config.process_name(rank) for rank in range(self.config.num_ranks)]

    def finish(self) -> Update | None:
        """Finish learning after the last `iterate`; return what others learned since then, if anything."""
        return None

    def metrics(self) -> dict[str, Any]:
        """Return what this kind of process adds to benchmark_metrics.json."""
        return {}

    def close(self) -> None:
        """Close environments and other resources."""


MakeTrainer = Callable[[ProcessSetup], LearningProcess]
"""Makes the learning process of a run, once the process may make environments."""


def slowest_rank(communicator: Communicator, busy: list[float]) -> dict[str, Any]:
    """Return the `slowest_rank` of a distributed run for its record; nothing on one machine.

    `busy` holds each rank's seconds of work. The others wait for the rank that is busy longest.
    """
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
    """Raise RunError if a parameter is not finite, so that diverged parameters are never saved."""
    if not all(math.isfinite(float(bound)) for bound in parameters.aminmax()):  # NaN makes both bounds NaN
        raise RunError("the parameters are not finite: training diverged")
