"""Reward scaling: learning sees rewards over the running standard deviation of the discounted return."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcb.rl.communicator import Communicator


class RewardScaler:
    """Scales the rewards of whole rollouts, with statistics that do not depend on how many processes collect.

    The discounted return of every environment, G <- gamma * G + r (begun anew after an episode's end), is
    observed at every step of a finished rollout; rewards are divided by the standard deviation of all G seen
    so far, and clipped.
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
        """The population standard deviation of all discounted returns seen; 1 before the first sample."""
        return float(np.sqrt(max(0.0, self.squared_deviations) / self.count)) if self.count else 1.0

    def scale(
        self, rewards: NDArray[np.float32], ended: NDArray[np.bool_], communicator: Communicator
    ) -> NDArray[np.float32]:
        """Take a finished rollout into the statistics and return its scaled rewards.

        `rewards` and `ended` are (T, N) over this process's environments; the statistics cover those of all
        processes.
        """
        self.observe(self.discount(rewards, ended, self.returns), communicator)
        return self.scaled(rewards)

    def discount(
        self, rewards: NDArray[np.float32], ended: NDArray[np.bool_], returns: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The discounted returns (T, N) at every step, of environments whose last ones are `returns` (N,),
        which is brought up to date."""
        discounted = np.empty(rewards.shape, np.float64)
        for t in range(len(rewards)):
            discounted[t] = self.gamma * returns + rewards[t]
            returns[:] = np.where(ended[t], 0.0, discounted[t])
        return discounted

    def scaled(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rewards over the standard deviation, clipped."""
        scaled = rewards / (self.std + self.EPSILON)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)

    def observe(self, samples: NDArray[np.float64], communicator: Communicator) -> None:
        """Merge discounted returns into count, mean and squared deviations (Chan et al. 1983), those of all
        processes."""
        shifted = samples - self.mean  # sums about the old mean lose no digits
        count, total, squares = communicator.sum_floats(
            [samples.size, shifted.sum(), np.square(shifted).sum()]
        )
        merged = self.count + count
        self.squared_deviations += squares - total * total / merged
        self.mean += total / merged
        self.count = merged

    def state(self) -> dict[str, Any]:
        """Everything but gamma and clip, as plain values. `returns` are those of this process's
        environments."""
        return {
            "count": self.count,
            "mean": self.mean,
            "squared_deviations": self.squared_deviations,
            "returns": self.returns.tolist(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.mean = state["mean"]
        self.squared_deviations = state["squared_deviations"]
        self.returns = np.asarray(state["returns"], np.float64)


class SharedRewardScaler(RewardScaler):
    """One of several whose statistics are common to all, in memory that their processes share."""

    def __init__(
        self,
        num_envs: int,
        gamma: float,
        clip: float,
        statistics: NDArray[np.float64],
        locked: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`statistics` (3,) are count, mean and squared deviations, used in the context `locked` alone."""
        super().__init__(num_envs, gamma, clip)
        self.statistics = statistics
        self.locked = locked

    def observe(self, samples: NDArray[np.float64], communicator: Communicator) -> None:
        """Merge discounted returns into what all have observed until now; this process scales by that."""
        with self.locked():
            self.count, self.mean, self.squared_deviations = self.statistics.tolist()
            super().observe(samples, communicator)
            self.statistics[:] = self.count, self.mean, self.squared_deviations
