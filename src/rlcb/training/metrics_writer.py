"""Writes and reads the metrics files of a run: `metrics.jsonl`, `metrics.json` and TensorBoard events."""

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

# The keys of every row of metrics.jsonl, in order; a metric without a value (yet) is null.
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
    """Return the rows of a metrics.jsonl, without an incomplete last line.

    Raises ValueError, naming the line, if another line is damaged.
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
    """Return the rows of a metrics.jsonl, and its damaged lines without an incomplete last line."""
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

    Moves damaged lines to metrics.damaged.jsonl in the same folder and logs a warning.
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
    """Replace a metrics.jsonl by one with these rows."""
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


class MetricsWriter:
    """Appends rows to metrics.jsonl and to TensorBoard's event file in one folder."""

    def __init__(self, folder: Path, tensorboard: bool, resume_update: int | None = None) -> None:
        """Open the files. With `resume_update`, the update of the checkpoint that the run resumes from, keep
        the rows up to it; otherwise start with empty files."""
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
        """Write one row. Raises KeyError if a key of ROW_KEYS is missing, and RunError if writing fails."""
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
        """Remove the rows of updates after `update` from metrics.jsonl; call this after `close`.

        Raises RunError if the file cannot be written.
        """
        if not self.path.exists():
            logger.warning("%s was deleted while the run trained: its rows are lost", self.path)
            return
        try:
            keep_rows(self.path, update)
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close both files. An error is only logged: `write` has raised it already if rows are lost."""
        try:
            self._file.close()
            if self._events is not None:
                self._events.close()
        except OSError as error:
            logger.warning("%s may lack its last rows: %s", self.path, error.strerror or error)


class EventFile:
    """Appends rows to TensorBoard's event file.

    A row is one event with many scalars; one event per scalar would take eight times as long.
    """

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        """Open a new event file. TensorBoard ignores events of steps >= `purge_step` in older files."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        self._summary = Summary
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=10)

    def write(self, row: Mapping[str, Any]) -> None:
        """Write the values of a row that are not null, at the step `timesteps`."""
        values = [
            self._summary.Value(tag=key, simple_value=value)
            for key, value in row.items()
            if value is not None and key != "timesteps"
        ]
        self._writer.file_writer.add_summary(self._summary(value=values), row["timesteps"])

    def close(self) -> None:
        """Write buffered events and close the file."""
        self._writer.close()


def open_events(folder: Path, purge_step: int | None) -> EventFile | None:
    """Return an open event file, or None, with a warning, if TensorBoard cannot be loaded."""
    try:
        return EventFile(folder, purge_step)
    except Exception as error:
        logger.warning("TensorBoard is not available (%s): metrics go to metrics.jsonl only", error)
        return None


def write_columns(rows_path: Path, path: Path) -> None:
    """Write a metrics.jsonl as a JSON object of columns: {key: [its value in every row]}."""
    rows, _ = sound_rows(rows_path)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    write_json(path, {key: [row.get(key) for row in rows] for key in keys})
