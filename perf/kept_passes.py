"""What it is worth that A2C and A3C learn from the passes with which they acted instead of making them again.

    venv/bin/python -m perf.kept_passes [--networks impala nature] [--rounds 3]

Whole runs on coinrun with 32 environments x 16 steps, a worker for each core, with
hardware.keep_acting_passes and without, in turn.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

from perf.measure import interleave, save, table
from perf.training_runs import train
from src.cpu_utils import usable_cores

SCRIPTS = {
    "A2C sequential": "train_a2c_sequential.py",
    "A2C parallel": "train_a2c_parallel.py",
    "A3C parallel": "train_a3c_parallel.py",
}
TIMESTEPS = {"impala": 32 * 16 * 20, "nature": 32 * 16 * 120}
AGAIN, KEPT = "made again", "kept"


def run(script: str, network: str, keep: bool, peaks: list[float]) -> float:
    """Timesteps per second of a run; its peak of memory goes to `peaks`."""
    settings = (f"model.architecture={network}", f"hardware.keep_acting_passes={str(keep).lower()}")
    workers = ("--num-workers", usable_cores()) if "parallel" in script else ()
    result = train(script, ("--total-timesteps", TIMESTEPS[network], *workers), settings)
    peaks.append(result.peak_memory_mb)
    return result.fps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", choices=sorted(TIMESTEPS), default=sorted(TIMESTEPS))
    arguments = parser.parse_args()
    parts = ["A2C and A3C on coinrun, 32 environments x 16 steps: the passes of acting made again or kept"]
    data: dict[str, Any] = {}
    for network in arguments.networks:
        for name, script in SCRIPTS.items():
            peaks: dict[str, list[float]] = {AGAIN: [], KEPT: []}
            comparison = interleave(
                {side: partial(run, script, network, side == KEPT, found) for side, found in peaks.items()},
                arguments.rounds,
            )
            memory = ", ".join(
                f"{statistics.median(found):,.0f} MB ({side})" for side, found in peaks.items()
            )
            parts += [
                f"{name}, {network} network; peak memory {memory}",
                table(comparison, AGAIN, "timesteps/s"),
            ]
            data[f"{name}, {network}"] = {"rates": comparison.rates, "peak_memory_mb": peaks}
    save("kept_passes", "\n\n".join(parts), data)


if __name__ == "__main__":
    main()
