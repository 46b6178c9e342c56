"""Statistics of a run: explained variance, means over samples, and the returns of episodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOW = 100  # episodes per mean of returns


def explained_variance(predictions: NDArray[np.float32], targets: NDArray[np.float32]) -> float | None:
    """Return 1 - Var[targets - predictions] / Var[targets]; None when the targets have no spread."""
    return explained_from_variances(
        float(np.var(targets, dtype=np.float64)), float(np.var(targets - predictions, dtype=np.float64))
    )


def explained_from_variances(target_variance: float, error_variance: float) -> float | None:
    """Return 1 - error_variance / target_variance; None when the targets have no spread."""
    return None if target_variance <= 0 else 1 - error_variance / target_variance


class SampleMeans:
    """Running means of named statistics over samples that come in batches of any size."""

    def __init__(self) -> None:
        self.count = 0
        self.totals: dict[str, float] = {}

    def add(self, means: Mapping[str, float], count: int) -> None:
        """Add the means over a batch of `count` samples."""
        self.count += count
        for name, mean in means.items():
            self.totals[name] = self.totals.get(name, 0.0) + mean * count

    def merge(self, other: SampleMeans) -> None:
        """Add all samples of `other`."""
        self.add(other.result(), other.count)

    def __getitem__(self, name: str) -> float:
        return self.totals[name] / self.count

    def result(self) -> dict[str, float]:
        """Return the mean of each statistic over all samples added."""
        return {name: total / self.count for name, total in self.totals.items()}


class Episode(NamedTuple):
    """A finished episode."""

    step: int
    """The step of the rollout in which it ended."""
    env: int
    """The environment, numbered over the whole run."""
    reward: float
    """The raw return."""
    length: int
    """Steps."""


class EpisodeStatistics:
    """Raw returns of a run: the first and last 100 episodes, and the best mean of 100 consecutive ones."""

    def __init__(self) -> None:
        self.count = 0
        self.first_rewards: list[float] = []
        self.last_rewards: deque[float] = deque(maxlen=WINDOW)
        self.last_lengths: deque[int] = deque(maxlen=WINDOW)
        self.best_mean: float | None = None

    def add(self, episodes: Iterable[Episode]) -> bool:
        """Add episodes in the order of their ends; return whether the best mean of 100 episodes rose."""
        best_before = self.best_mean
        for episode in episodes:
            reward, length = episode.reward, episode.length
            self.count += 1
            if len(self.first_rewards) < WINDOW:
                self.first_rewards.append(reward)
            self.last_rewards.append(reward)
            self.last_lengths.append(length)
            if len(self.last_rewards) == WINDOW:
                mean = math.fsum(self.last_rewards) / WINDOW
                self.best_mean = mean if self.best_mean is None else max(self.best_mean, mean)
        return self.best_mean is not None and self.best_mean != best_before

    def row(self) -> dict[str, float | int | None]:
        """Return the `rollout/` metrics of metrics.jsonl: means over the last 100 episodes, and the count of
        all episodes."""
        rewards, lengths = self.last_rewards, self.last_lengths
        return {
            "rollout/ep_reward_mean": float(np.mean(rewards)) if rewards else None,
            "rollout/ep_reward_std": float(np.std(rewards)) if rewards else None,
            "rollout/ep_length_mean": float(np.mean(lengths)) if lengths else None,
            "rollout/episodes": self.count,
        }

    def performance(self) -> dict[str, float | None]:
        """Return `performance` of benchmark_metrics.json; all None before the first episode. With fewer than
        100 episodes, means are over all of them."""
        if not self.count:
            keys = ("initial_reward", "final_reward", "best_reward", "average_reward_last_100_episodes")
            return dict.fromkeys((*keys, "std_reward_last_100_episodes", "mean_length_last_100_episodes"))
        final = float(np.mean(self.last_rewards))
        return {
            "initial_reward": float(np.mean(self.first_rewards)),
            "final_reward": final,
            "best_reward": final if self.best_mean is None else self.best_mean,
            "average_reward_last_100_episodes": final,
            "std_reward_last_100_episodes": float(np.std(self.last_rewards)),
            "mean_length_last_100_episodes": float(np.mean(self.last_lengths)),
        }

    def state(self) -> dict[str, Any]:
        """Return everything as plain values, for a checkpoint."""
        return {
            "count": self.count,
            "first_rewards": list(self.first_rewards),
            "last_rewards": list(self.last_rewards),
            "last_lengths": list(self.last_lengths),
            "best_mean": self.best_mean,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.count = state["count"]
        self.first_rewards = list(state["first_rewards"])
        self.last_rewards = deque(state["last_rewards"], WINDOW)
        self.last_lengths = deque(state["last_lengths"], WINDOW)
        self.best_mean = state["best_mean"]
