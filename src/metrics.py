"""The numbers of a run: means over samples, episode statistics, and the files that hold the series."""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from src.errors import RunError
from src.files import strict_json, write_atomically, write_json

logger = logging.getLogger(__name__)

WINDOW = 100  # episodes in every mean of returns

# What every row of metrics.jsonl has, in order; a figure that does not exist (yet) is null.
ROW_KEYS = (
    "timesteps",
    "update",
    "time/elapsed_seconds",
    "time/fps",
    "time/fps_average",
    "rollout/ep_reward_mean",
    "rollout/ep_reward_std",
    "rollout/ep_length_mean",
    "rollout/episodes",
    "train/policy_loss",
    "train/value_loss",
    "train/entropy",
    "train/approx_kl",
    "train/clip_fraction",
    "train/explained_variance",
    "train/learning_rate",
    "train/grad_norm",
    "train/epochs",
    "profile/env_seconds",
    "profile/inference_seconds",
    "profile/learn_seconds",
    "profile/sync_seconds",
    "profile/wait_seconds",
    "system/memory_gb",
    "system/cpu_percent",
)


def explained_variance(predictions: NDArray[np.float32], targets: NDArray[np.float32]) -> float | None:
    """1 - Var[targets - predictions] / Var[targets]; None when the targets have no spread."""
    return explained_from_variances(
        float(np.var(targets, dtype=np.float64)), float(np.var(targets - predictions, dtype=np.float64))
    )


def explained_from_variances(variance: float, of_errors: float) -> float | None:
    """The same from the two variances."""
    return None if variance <= 0 else 1 - of_errors / variance


class SampleMeans:
    """Means of named statistics over samples that come in batches of any size."""

    def __init__(self) -> None:
        self.count = 0
        self.totals: dict[str, float] = {}

    def add(self, means: Mapping[str, float], count: int) -> None:
        """Take in the means over a batch of `count` samples."""
        self.count += count
        for name, mean in means.items():
            self.totals[name] = self.totals.get(name, 0.0) + mean * count

    def merge(self, other: SampleMeans) -> None:
        self.add(other.result(), other.count)

    def __getitem__(self, name: str) -> float:
        return self.totals[name] / self.count

    def result(self) -> dict[str, float]:
        return {name: total / self.count for name, total in self.totals.items()}


class Episode(NamedTuple):
    """A finished episode: when in the rollout and where it ended, its raw return, its length in steps."""

    step: int
    env: int
    reward: float
    length: int


class EpisodeStatistics:
    """Raw returns of the run: the first and the last 100 episodes, and the best mean of 100 in a row."""

    def __init__(self) -> None:
        self.count = 0
        self.first_rewards: list[float] = []
        self.last_rewards: deque[float] = deque(maxlen=WINDOW)
        self.last_lengths: deque[int] = deque(maxlen=WINDOW)
        self.best_mean: float | None = None

    def add(self, episodes: Iterable[Episode]) -> bool:
        """Take in episodes in order; returns whether the best mean of 100 episodes rose."""
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
        """The figures of a metrics row: over the last 100 episodes, and how many there were in all."""
        rewards, lengths = self.last_rewards, self.last_lengths
        return {
            "rollout/ep_reward_mean": float(np.mean(rewards)) if rewards else None,
            "rollout/ep_reward_std": float(np.std(rewards)) if rewards else None,
            "rollout/ep_length_mean": float(np.mean(lengths)) if lengths else None,
            "rollout/episodes": self.count,
        }

    def performance(self) -> dict[str, float | None]:
        """The figures of benchmark_metrics.json; null without an episode. With fewer than 100 the mean of
        them all."""
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
        return {
            "count": self.count,
            "first_rewards": list(self.first_rewards),
            "last_rewards": list(self.last_rewards),
            "last_lengths": list(self.last_lengths),
            "best_mean": self.best_mean,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.first_rewards = list(state["first_rewards"])
        self.last_rewards = deque(state["last_rewards"], WINDOW)
        self.last_lengths = deque(state["last_lengths"], WINDOW)
        self.best_mean = state["best_mean"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl. A last line that was cut while it was written is left out.

    Raises ValueError that names the line for a damaged line anywhere else.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
            rows.append(row)
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path} line {number}: {error}") from None
    return rows


def rows_until(path: Path, update: int) -> list[dict[str, Any]]:
    return [row for row in read_rows(path) if row["update"] <= update]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


class MetricsWriter:
    """Appends rows to metrics.jsonl and to TensorBoard's event file in one folder."""

    def __init__(self, folder: Path, tensorboard: bool, resume_update: int | None = None) -> None:
        """With `resume_update`, rows of later updates (written after the checkpoint) are removed first."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "metrics.jsonl"
        kept = []
        if resume_update is not None and self.path.exists():
            kept = rows_until(self.path, resume_update)
        write_rows(self.path, kept)
        self._file = self.path.open("a", encoding="utf-8")
        purge_step = kept[-1]["timesteps"] + 1 if kept else None
        self._events = open_events(folder, purge_step) if tensorboard else None

    def write(self, row: Mapping[str, Any]) -> None:
        """Write one row. Every key of ROW_KEYS must be there. Raises RunError if it cannot be written."""
        missing = [key for key in ROW_KEYS if key not in row]
        if missing:
            raise KeyError(f"metrics row without {missing}")
        clean = strict_json(
            {key: row[key] for key in [*ROW_KEYS, *(key for key in row if key not in ROW_KEYS)]}
        )
        try:
            self._file.write(json.dumps(clean, allow_nan=False) + "\n")
            self._file.flush()
            if self._events is not None:
                self._events.write(clean)
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {error.strerror or error}") from error

    def keep_until(self, update: int) -> None:
        """Remove the rows of later updates; to be called after `close`."""
        write_rows(self.path, rows_until(self.path, update))

    def close(self) -> None:
        """Close both files; what a full disk kept back was an error when it was written, so it is only
        said."""
        try:
            self._file.close()
            if self._events is not None:
                self._events.close()
        except OSError as error:
            logger.warning("%s may lack its last rows: %s", self.path, error.strerror or error)


class EventFile:
    """TensorBoard's file: a row is one event of many scalars, which takes an eighth of the time that an event
    for each of them takes."""

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        self._summary = Summary
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=10)

    def write(self, row: Mapping[str, Any]) -> None:
        values = [
            self._summary.Value(tag=key, simple_value=value)
            for key, value in row.items()
            if value is not None and key != "timesteps"
        ]
        self._writer.file_writer.add_summary(self._summary(value=values), row["timesteps"])

    def close(self) -> None:
        self._writer.close()


def open_events(folder: Path, purge_step: int | None) -> EventFile | None:
    """None, and a warning, where there is no TensorBoard."""
    try:
        return EventFile(folder, purge_step)
    except Exception as error:
        logger.warning("TensorBoard is not available (%s): metrics go to metrics.jsonl only", error)
        return None


def write_columns(rows_path: Path, path: Path) -> None:
    """Write the series of a metrics.jsonl as columns: {key: [value of every row]}."""
    rows = read_rows(rows_path)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    write_json(path, {key: [row.get(key) for row in rows] for key in keys})
