"""Whole training runs as a user starts them, for measurements of speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcb import cpu
from rlcb.paths import PROJECT


@dataclass(frozen=True)
class Result:
    """The results of a run; its rate leaves out the first of several updates, which warms up."""

    fps: float
    record: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def peak_memory_mb(self) -> float:
        return float(self.record["resource_usage"]["peak_memory_gb"] * 1024)

    @property
    def shares(self) -> dict[str, float]:
        """Return the share of the time by phase."""
        return {name: part["share"] for name, part in self.record["time_breakdown"].items()}


def command(script: str, folder: str, flags: Sequence[object], settings: Sequence[str]) -> list[str]:
    name, *choice = script.split()  # the flags that choose the algorithm and mode of train.py
    words = [sys.executable, str(PROJECT / name), *choice, "--output-dir", folder, *map(str, flags)]
    for setting in ("logging.tensorboard=false", *settings):
        words += ["--set", setting]
    return words


def environment() -> dict[str, str]:
    """Return this process's environment variables without those that set numbers of threads."""
    return {key: value for key, value in os.environ.items() if key not in cpu.THREAD_VARIABLES}


def train(
    script: str, flags: Sequence[object], settings: Sequence[str] = (), core: int | None = None
) -> Result:
    """Run a training script in a temporary folder; with `core`, pinned to that one core."""
    with tempfile.TemporaryDirectory() as folder:
        return train_in(Path(folder), script, flags, settings, core)


def train_in(
    folder: Path, script: str, flags: Sequence[object], settings: Sequence[str], core: int | None = None
) -> Result:
    """Run a training script in this folder; with `core`, pinned to that one core."""
    words = command(script, str(folder), flags, settings)
    if core is not None:
        words = ["taskset", "-c", str(core), *words]
    subprocess.run(words, env=environment(), check=True, capture_output=True)
    return read(folder)


def is_complete(folder: Path) -> bool:
    """Return whether a folder has a completed run."""
    record = folder / "benchmark_metrics.json"
    return record.exists() and json.loads(record.read_text())["status"] == "completed"


def read(folder: Path) -> Result:
    """Read the results of a run from its folder."""
    (path,) = folder.glob("logs/*/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    record = json.loads((folder / "benchmark_metrics.json").read_text())
    if len(rows) == 1:
        return Result(rows[0]["time/fps"], record, rows)
    seconds = rows[-1]["time/elapsed_seconds"] - rows[0]["time/elapsed_seconds"]
    return Result((rows[-1]["timesteps"] - rows[0]["timesteps"]) / seconds, record, rows)
