"""Reward scaling: rewards divided by the running standard deviation of the discounted return."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcb.rl.communicator import Communicator


class RewardScaler:
    """Scales the rewards of finished rollouts; the statistics do not depend on the number of processes.

    Each environment has a discounted return, G <- gamma * G + r, which restarts at 0 after an episode.
    Rewards are divided by the standard deviation of the returns G of all steps so far, and clipped.
    """

    EPSILON = 1e-8

    def __init__(self, num_envs: int, gamma: float, clip: float) -> None:
        self.gamma = gamma
        self.clip = clip
        self.count = 0.0
        self.mean = 0.0
        self.squared_deviations = 0.0  # sum over all samples of (G - mean)^2
        self.returns = np.zeros(num_envs, np.float64)  # this process's environments

    @property
    def std(self) -> float:
        """The population standard deviation of all discounted returns so far; 1 before the first one."""
        return float(np.sqrt(max(0.0, self.squared_deviations) / self.count)) if self.count else 1.0

    def scale(
        self, rewards: NDArray[np.float32], ended: NDArray[np.bool_], communicator: Communicator
    ) -> NDArray[np.float32]:
        """Add a finished rollout to the statistics and return its scaled rewards (T, N).

        `rewards` and `ended` (T, N) are those of this process's environments; the statistics cover all
        processes.
        """
        self.observe(self.discount(rewards, ended, self.returns), communicator)
        return self.scaled(rewards)

    def discount(
        self, rewards: NDArray[np.float32], ended: NDArray[np.bool_], returns: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the discounted returns (T, N) after every step.

        `returns` (N,) are those before the first step; they are updated in place to those after the last.
        """
        discounted = np.empty(rewards.shape, np.float64)
        for t in range(len(rewards)):
            discounted[t] = self.gamma * returns + rewards[t]
            returns[:] = np.where(ended[t], 0.0, discounted[t])
        return discounted

    def scaled(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return rewards (T, N) divided by the standard deviation and clipped, as float32."""
        scaled = rewards / (self.std + self.EPSILON)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)

    def observe(self, samples: NDArray[np.float64], communicator: Communicator) -> None:
        """Merge the discounted returns of all processes into count, mean and squared deviations (Chan et al.
        1983). `samples` are this process's."""
        shifted = samples - self.mean  # sums of deviations from the old mean keep all digits
        count, total, squares = communicator.sum_floats(
            [samples.size, shifted.sum(), np.square(shifted).sum()]
        )
        merged = self.count + count
        self.squared_deviations += squares - total * total / merged
        self.mean += total / merged
        self.count = merged

    def state(self) -> dict[str, Any]:
        """Return the statistics and this process's discounted returns as plain values, for a checkpoint."""
        return {
            "count": self.count,
            "mean": self.mean,
            "squared_deviations": self.squared_deviations,
            "returns": self.returns.tolist(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.count = state["count"]
        self.mean = state["mean"]
        self.squared_deviations = state["squared_deviations"]
        self.returns = np.asarray(state["returns"], np.float64)


class SharedRewardScaler(RewardScaler):
    """The reward scaler of an A3C worker: its statistics are in memory that all workers share."""

    def __init__(
        self,
        num_envs: int,
        gamma: float,
        clip: float,
        statistics: NDArray[np.float64],
        locked: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`statistics` (3,), shared by all workers, holds count, mean and squared deviations; it is read and
        written only inside the context manager `locked`."""
        super().__init__(num_envs, gamma, clip)
        self.statistics = statistics
        self.locked = locked

    def observe(self, samples: NDArray[np.float64], communicator: Communicator) -> None:
        """Merge this worker's discounted returns into the shared statistics, and take those over."""
        with self.locked():
            self.count, self.mean, self.squared_deviations = self.statistics.tolist()
            super().observe(samples, communicator)
            self.statistics[:] = self.count, self.mean, self.squared_deviations
