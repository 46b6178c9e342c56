"""The metric files of a run: `metrics.jsonl`, `metrics.json` and TensorBoard events."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlcb.errors import RunError
from rlcb.files import strict_json, write_atomically, write_json
from rlcb.text import counted

logger = logging.getLogger(__name__)

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


def sound_rows(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of a metrics.jsonl, and its damaged lines without a last line that was cut off."""
    rows, damaged = [], []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not all(isinstance(row[key], int) for key in ("update", "timesteps")):
                raise ValueError
            rows.append(row)
        except (ValueError, TypeError, KeyError):
            if number < len(lines):
                damaged.append(line)
    return rows, damaged


def keep_rows(path: Path, update: int) -> list[dict[str, Any]]:
    """Remove the rows of updates after `update` from a metrics.jsonl; return the rows that stay.

    Damaged lines are moved to metrics.damaged.jsonl beside it, with a warning.
    """
    rows, damaged = sound_rows(path)
    if damaged:
        aside = path.with_name("metrics.damaged.jsonl")
        with aside.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in damaged)
        logger.warning("%s had %s, now in %s", path, counted(len(damaged), "damaged line"), aside.name)
    rows = [row for row in rows if row["update"] <= update]
    write_rows(path, rows)
    return rows


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


class MetricsWriter:
    """Appends rows to metrics.jsonl and to TensorBoard's event file in one folder."""

    def __init__(self, folder: Path, tensorboard: bool, resume_update: int | None = None) -> None:
        """With `resume_update`, rows of later updates (written after the checkpoint) are removed first."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "metrics.jsonl"
        kept: list[dict[str, Any]] = []
        if resume_update is not None and self.path.exists():
            kept = keep_rows(self.path, resume_update)
        else:
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
        if not self.path.exists():
            logger.warning("%s was deleted while the run trained: its rows are lost", self.path)
            return
        try:
            keep_rows(self.path, update)
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {error.strerror or error}") from error

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
    rows, _ = sound_rows(rows_path)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    write_json(path, {key: [row.get(key) for row in rows] for key in keys})
