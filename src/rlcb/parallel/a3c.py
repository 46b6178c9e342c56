"""A3C (Mnih et al. 2016): asynchronous workers that share parameters and optimizer.

Each worker copies the shared parameters, collects a rollout in its own environments, computes the A2C
gradient, and applies it to the shared parameters, which other workers may have changed in the meantime. The
shared data are in one block of memory. One lock guards all reads and writes, so no update is lost and every
count is exact.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlcb.config.budget import Budget
from rlcb.config.config import Config
from rlcb.config.settings import ParallelConfig
from rlcb.errors import RunError
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.processes.shared_memory import Layout, layout_bytes, map_shared, open_rollout, views
from rlcb.rl.communicator import Communicator
from rlcb.rl.learner import make_optimizer
from rlcb.rl.reward_scaler import SharedRewardScaler
from rlcb.rl.rollout_buffer import RolloutBuffer, rollout_bytes
from rlcb.rl.statistics import Episode
from rlcb.rl.timing import PHASES
from rlcb.training.base import REWARD_PER_STEP, Counters, ProcessSetup, Update, require_finite
from rlcb.training.run import train
from rlcb.training.run_spec import RunSpec
from rlcb.training.trainer import Trainer

OPTIMIZER_STATE = {"adam": ("exp_avg", "exp_avg_sq"), "rmsprop": ("square_avg",)}
EPISODES = 2**16
"""The number of episodes that may end between two rows of the log."""
METRICS = (
    *("policy_loss", "value_loss", "entropy", "explained_variance", "grad_norm", "epochs"),
    REWARD_PER_STEP,
)
"""The metrics of an update; the log has their means over the updates since its last row."""
POLL_SECONDS = 0.002


def shared_layout(config: Config, num_parameters: int) -> Layout:
    """Return the layout of the block that the workers share."""
    workers, slots = config.num_processes, len(OPTIMIZER_STATE[config.training.optimizer])
    floats, doubles, integers = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)
    return {
        "parameters": ((num_parameters,), floats),
        "optimizer": ((slots, num_parameters), floats),
        "optimizer_step": ((1,), floats),
        "started": ((1,), integers),  # updates that workers have started
        "updates": ((1,), integers),  # updates that were applied: the version of the parameters
        "arrived": ((1,), integers),  # workers that have arrived at barriers, in total
        "scaler": ((3,), doubles),  # count, mean, squared deviations of the reward scaler
        "metrics": ((len(METRICS), 2), doubles),  # sum and count since the last row
        "ages": ((3,), doubles),  # gradient age since the last row: sum, count, largest
        "num_episodes": ((1,), integers),  # since the last row
        "episodes": ((EPISODES, len(Episode._fields)), doubles),
        "worker_updates": ((workers,), integers),
        "worker_phases": ((workers, len(PHASES)), doubles),
        "worker_threads": ((workers,), integers),
    }


class A3CCommunicator(Communicator):
    """The communicator of a worker: sums contain this worker only, and barriers wait for all workers."""

    def __init__(self, context: SupervisedContext, num_workers: int) -> None:
        self.rank = context.rank
        self.context = context
        self.num_workers = num_workers
        self.arrived: NDArray[np.int64] | None = None
        self._barriers = 0

    def from_main(self, value: float) -> float:
        """Return the value: every worker follows its own clock, which starts at a barrier."""
        return value

    def barrier(self) -> None:
        assert self.arrived is not None
        self._barriers += 1
        with self.context.lock:
            self.arrived[0] += 1
        with self.context.wait_for_others():
            while self.arrived[0] < self._barriers * self.num_workers:
                self.context.check()
                time.sleep(POLL_SECONDS)


class A3CTrainer(Trainer):
    """A worker of A3C. It applies its gradients to the shared parameters; its counters count the updates of
    all workers."""

    communicator: A3CCommunicator

    def __init__(self, setup: ProcessSetup) -> None:
        """`shared_memory` is not used: a worker's rollout is private, and no file backs the shared block."""
        config, communicator = setup.config, setup.communicator
        assert isinstance(communicator, A3CCommunicator)
        super().__init__(setup)
        layout = shared_layout(config, len(self.learner.parameters))
        block = communicator.context.shared_memory(ParallelConfig(), layout_bytes(layout))
        self.shared = views(layout, block)
        communicator.arrived = self.shared["arrived"]
        training, statistics = config.training, self.shared["scaler"]
        self.scaler = SharedRewardScaler(
            config.envs_per_process, training.gamma, training.reward_clip, statistics, self._locked
        )
        self.rank = communicator.rank
        self.version = 0
        self.learner.communicator = Communicator()  # gradients are not summed over workers
        self.learner.apply = self._apply_gradient
        self.shared_parameters = torch.from_numpy(self.shared["parameters"])
        self.shared_parameters.grad = self.learner.gradient
        self.learner.optimizer = make_optimizer(self.shared_parameters, config.training)
        self.learner.optimizer.state[self.shared_parameters] = self._optimizer_state()
        self.shared["worker_threads"][self.rank] = torch.get_num_threads()
        if communicator.is_main:
            self.shared_parameters.copy_(self.learner.parameters)
        communicator.barrier()

    def _make_rollout(self) -> tuple[RolloutBuffer, RolloutBuffer]:
        """Return a private rollout of this worker."""
        parallel, size = self.config.parallel, (self.config.training.n_steps, self.config.envs_per_process)
        block = None
        if parallel.buffer == "mmap":
            block = map_shared(open_rollout(parallel, rollout_bytes(*size, self.spaces)))
        rollout = RolloutBuffer(*size, self.spaces, block)
        return rollout, rollout

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        names = OPTIMIZER_STATE[self.config.training.optimizer]
        slots = {name: torch.from_numpy(self.shared["optimizer"][i]) for i, name in enumerate(names)}
        return {"step": torch.from_numpy(self.shared["optimizer_step"]).squeeze(0), **slots}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self.timer("sync"), self.communicator.context.wait_for_others():
            self.communicator.context.lock.acquire()
        try:
            yield
        finally:
            self.communicator.context.lock.release()

    def may_begin(self, budget: Budget, elapsed: float, update_seconds: float) -> bool:
        """Reserve an update of the budget, so that all workers together make exactly the budget's number."""
        with self._locked():
            started = self.shared["started"]
            if budget.finished(int(started[0]), elapsed, update_seconds):
                return False
            self.counters.updates = int(started[0])  # the number of the update, for the learning rate
            started[0] += 1
            return True

    def iterate(self, learning_rate: float) -> Update:
        """Make one update. In the main process, return the metrics of all workers since its last update."""
        number = int(self.shared["worker_updates"][self.rank])
        with self._locked():
            self.learner.parameters.copy_(self.shared_parameters)
            self.version = int(self.shared["updates"][0])
        episodes = self.collector.collect(self.local_rollout, number)
        self._compute_advantages()
        self.learner.set_learning_rate(learning_rate)
        metrics = self.algorithm.update(self.learner, self.local_rollout, self.config, number)
        metrics[REWARD_PER_STEP] = self.local_rollout.mean_reward()
        with self._locked():
            self._report(episodes, metrics)
            return self._take_reports()

    def _apply_gradient(self) -> None:
        """Apply this worker's gradient to the shared parameters."""
        with self._locked(), self.timer("learn"):
            self.learner.optimizer.step()
            age = int(self.shared["updates"][0]) - self.version
            ages = self.shared["ages"]
            ages[:] = ages[0] + age, ages[1] + 1, max(ages[2], age)
            self.shared["updates"][0] += 1
            self.shared["worker_updates"][self.rank] += 1

    def _report(self, episodes: list[Episode], metrics: dict[str, float | None]) -> None:
        """Add this update's episodes and metrics to the shared data. The caller holds the lock."""
        for row, name in zip(self.shared["metrics"], METRICS, strict=True):
            value = metrics[name]
            if value is not None:
                row += value, 1
        first = int(self.shared["num_episodes"][0])
        if first + len(episodes) > EPISODES:
            raise RunError(f"more than {EPISODES} episodes ended between two updates of worker 0")
        if episodes:
            self.shared["episodes"][first : first + len(episodes)] = episodes
        self.shared["num_episodes"][0] += len(episodes)
        self.shared["worker_phases"][self.rank] = list(self.timer.seconds.values())

    def _take_reports(self) -> Update:
        """Return what all workers reported since the last row, and update the counters; main process only."""
        if not self.communicator.is_main:
            return Update([], {})
        shared = self.shared
        metrics: dict[str, float | None] = {
            name: total / count if count else None
            for name, (total, count) in zip(METRICS, shared["metrics"].tolist(), strict=True)
        }
        total, count, largest = shared["ages"].tolist()
        metrics |= {
            "approx_kl": None,
            "clip_fraction": None,
            "a3c/gradient_age_mean": total / count if count else None,
            "a3c/gradient_age_max": largest if count else None,
        }
        rows = shared["episodes"][: int(shared["num_episodes"][0])].tolist()
        episodes = [Episode(int(step), int(env), reward, int(length)) for step, env, reward, length in rows]
        for name in ("metrics", "ages", "num_episodes"):
            shared[name][:] = 0
        self.counters.updates = int(shared["updates"][0])
        self.counters.timesteps = self.counters.updates * self.config.timesteps_per_update
        if self.take_state:
            self._state = self._copy_state()
        self.phase_seconds = self._phases()
        return Update(episodes, metrics)

    def finish(self) -> Update | None:
        """Wait for the unfinished updates of other workers; return what no row of the log has yet."""
        before = self.counters.updates
        self.communicator.barrier()
        with self._locked():
            update = self._take_reports()
        return update if self.counters.updates > before else None

    def exchange(self, episodes: list[Episode]) -> list[Episode]:
        """Copy the shared state if it is due. Episodes travel through shared memory."""
        if self.communicator.is_main and self.take_state:
            with self._locked():
                self._state = self._copy_state()
                self.phase_seconds = self._phases()
        return episodes

    def _phases(self) -> list[dict[str, float]]:
        return [dict(zip(PHASES, row, strict=True)) for row in self.shared["worker_phases"].tolist()]

    def _copy_state(self) -> dict[str, Any]:
        """Return a copy of the shared state. The caller holds the lock. Environments are not part of it:
        other workers step theirs meanwhile."""
        shared = self.shared
        self.learner.parameters.copy_(self.shared_parameters)
        require_finite(self.learner.parameters)
        count, mean, squared_deviations = shared["scaler"].tolist()
        return {
            "spaces": self.spaces.to_dict(),
            "learner": copy.deepcopy(self.learner.state()),
            "counters": asdict(self.counters),
            "scaler": {"count": count, "mean": mean, "squared_deviations": squared_deviations},
            "rng": {"torch": torch.get_rng_state()},
            "worker_updates": shared["worker_updates"].tolist(),
            "phase_seconds": self._phases(),
            "threads": shared["worker_threads"].tolist(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore a saved state; episodes start anew. Raises UsageError if its spaces differ."""
        self.require_spaces(state)
        self.counters = Counters(**state["counters"])
        self.timer.seconds.update(state["phase_seconds"][self.rank])
        self.shared["worker_phases"][self.rank] = list(self.timer.seconds.values())
        self.learner.model.load_state_dict(state["learner"]["model"])
        if self.communicator.is_main:
            self.shared_parameters.copy_(self.learner.parameters)
            saved, shared = state["learner"]["optimizer"]["state"][0], self.shared
            for name, tensor in self._optimizer_state().items():
                tensor.copy_(saved[name])
            scaler = state["scaler"]
            shared["scaler"][:] = scaler["count"], scaler["mean"], scaler["squared_deviations"]
            shared["started"][0] = shared["updates"][0] = self.counters.updates
            shared["worker_updates"][:] = state["worker_updates"]
        self._restart_environments()


def work(spec: RunSpec, context: SupervisedContext) -> int:
    """Run one worker until training ends; return the exit code of the run."""
    return train(spec, context, A3CCommunicator(context, spec.config.num_processes), A3CTrainer)
