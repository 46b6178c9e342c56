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
from perf.training_runs import Result, train
from src.cpu_utils import usable_cores

SCRIPTS = {
    "A2C sequential": "train_a2c_sequential.py",
    "A2C parallel": "train_a2c_parallel.py",
    "A3C parallel": "train_a3c_parallel.py",
}
TIMESTEPS = {"impala": 32 * 16 * 20, "nature": 32 * 16 * 120}
AGAIN, KEPT = "made again", "kept"


def run(script: str, network: str, keep: bool, results: list[Result]) -> float:
    """Timesteps per second of a run, which goes to `results`."""
    settings = (f"model.architecture={network}", f"hardware.keep_acting_passes={str(keep).lower()}")
    workers = ("--num-workers", usable_cores()) if "parallel" in script else ()
    results.append(train(script, ("--total-timesteps", TIMESTEPS[network], *workers), settings))
    return results[-1].fps


def medians(results: list[Result]) -> dict[str, float]:
    """Peak of memory in MB, and the share of the time that each phase takes."""
    shares = {
        phase: round(statistics.median(each.shares[phase] for each in results), 4)
        for phase in results[0].shares
    }
    return {"peak_memory_mb": round(statistics.median(each.peak_memory_mb for each in results)), **shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", choices=sorted(TIMESTEPS), default=sorted(TIMESTEPS))
    arguments = parser.parse_args()
    parts = ["A2C and A3C on coinrun, 32 environments x 16 steps: the passes of acting made again or kept"]
    data: dict[str, Any] = {}
    for network in arguments.networks:
        for name, script in SCRIPTS.items():
            results: dict[str, list[Result]] = {AGAIN: [], KEPT: []}
            comparison = interleave(
                {side: partial(run, script, network, side == KEPT, found) for side, found in results.items()},
                arguments.rounds,
            )
            parts += [f"### {name}, {network} network", table(comparison, AGAIN, "timesteps/s")]
            sides = {side: medians(found) for side, found in results.items()}
            for side, (memory, *shares) in ((side, each.items()) for side, each in sides.items()):
                where = ", ".join(f"{phase} {share:.1%}" for phase, share in shares if share)
                parts.append(f"- {side}: peak memory {memory[1]:,.0f} MB; time: {where}")
            data[f"{name}, {network}"] = {"rates": comparison.rates, "medians": sides}
    save("kept_passes", "\n\n".join(parts), data)


if __name__ == "__main__":
    main()
