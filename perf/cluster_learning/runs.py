"""Runs of several nodes on this machine: short ones over a shaped link for the speed, whole ones without a
link for what is learned."""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from perf.cluster_learning.ways import (
    SCRIPT,
    TRAINING,
    UPDATE,
    Way,
    average_every,
    flags_of,
    settings_of,
)
from perf.cluster_scaling.link import RATES, hosts
from perf.training_runs import is_complete
from tests import runs
from tests.cluster_runs import Nodes, own_address

WARM = 1  # updates that are not measured
MEASURED = {"1gbit": 8, "100mbit": 4, "10mbit": 2}  # updates, at least
BEFORE_CHOICE = 5  # updates in which average_every=auto chooses
LONGEST_SECONDS = 7200.0


def train(
    folder: Path, env: str, ranks: int, updates: int, settings: Sequence[object], link: str | None = None
) -> list[dict[str, Any]]:
    """Train on `ranks` nodes of one rank each; return the rows of metrics.jsonl. Without a link, all nodes
    are this machine."""
    with ExitStack() as stack:
        names, address = ("",) * ranks, own_address()
        if link is not None:
            place = stack.enter_context(hosts(ranks, RATES[link]))
            names, address = place.names, place.addresses[0]
        nodes = stack.enter_context(Nodes(address, names))
        budget = ("--env", env, "--total-timesteps", updates * UPDATE, "--output-dir", folder)
        nodes.start(SCRIPT, *TRAINING, *budget, *settings)
        for code, _, errors in nodes.wait(LONGEST_SECONDS):
            if code:
                raise SystemExit(errors)
    return runs.rows(folder)


def measure_speed(way: Way, env: str, ranks: int, link: str) -> dict[str, Any]:
    """Return what a way does over a link: `fps`, timesteps per second over whole cycles of averages;
    `sync_seconds` of an update; with averages `every`, and the `choice` that `auto` made."""
    every, found = way.every, {}
    with tempfile.TemporaryDirectory() as place:
        if every == "auto":
            flags = flags_of(settings_of(way))
            train(Path(place) / "choice", env, ranks, BEFORE_CHOICE, flags, link)
            found["choice"] = choice = runs.record(Path(place) / "choice")["averages"]
            every = int(choice["every"])
        settings = settings_of(way) if every is None else average_every(every)
        cycle = every or 1
        measured = cycle * math.ceil(MEASURED[link] / cycle)
        rows = train(Path(place) / "run", env, ranks, WARM + measured, flags_of(settings), link)
    return {**found, **speed_of(rows), "every": every}


def speed_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return timesteps per second and mean seconds of `sync` over all updates but the first WARM."""
    before, last = rows[WARM - 1], rows[-1]
    seconds = last["time/elapsed_seconds"] - before["time/elapsed_seconds"]
    return {
        "fps": (last["timesteps"] - before["timesteps"]) / seconds,
        "sync_seconds": statistics.fmean(row["profile/sync_seconds"] for row in rows[WARM:]),
    }


def whole_run(
    folder: Path,
    env: str,
    ranks: int,
    seed: int,
    updates: int,
    settings: tuple[str, ...],
    link: str | None = None,
) -> None:
    """Make a run in `folder` unless it is there already."""
    if not is_complete(folder):
        shutil.rmtree(folder, ignore_errors=True)
        train(folder, env, ranks, updates, [*flags_of(settings), "--seed", seed], link)


def curve_of(folder: Path) -> dict[str, list[float | None]]:
    """Return a run's `timesteps`, `returns` (mean of the last 100 episodes; None before the first one ended)
    and `seconds`, by update."""
    rows = runs.rows(folder)
    keys = {"timesteps": "timesteps", "returns": "rollout/ep_reward_mean", "seconds": "time/elapsed_seconds"}
    return {name: [row[key] for row in rows] for name, key in keys.items()}
