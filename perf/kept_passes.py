"""Speed-up of A2C and A3C by learning from the activations cached while acting.

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
from rlcb.cpu import usable_cores

SCRIPTS = {
    "A2C sequential": "train.py --algorithm a2c --mode sequential",
    "A2C parallel": "train.py --algorithm a2c --mode parallel",
    "A3C parallel": "train.py --algorithm a3c --mode parallel",
}
TIMESTEPS = {"impala": 32 * 16 * 20, "nature": 32 * 16 * 120}
AGAIN, KEPT = "made again", "kept"


def run(script: str, network: str, keep: bool, results: list[Result]) -> float:
    """Return the timesteps per second of a run; append the run to `results`."""
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
    for network in arguments.networks:
        measure(network, arguments.rounds)


def measure(network: str, rounds: int) -> None:
    """Measure all scripts with a network and save the results."""
    parts = [
        f"A2C and A3C on coinrun, {network} network, 32 environments x 16 steps: the passes of acting made "
        "again or kept"
    ]
    data: dict[str, Any] = {}
    for name, script in SCRIPTS.items():
        results: dict[str, list[Result]] = {AGAIN: [], KEPT: []}
        comparison = interleave(
            {side: partial(run, script, network, side == KEPT, found) for side, found in results.items()},
            rounds,
        )
        sides = {side: medians(found) for side, found in results.items()}
        parts += [f"### {name}", table(comparison, AGAIN, "timesteps/s")]
        lines = []
        for side, each in sides.items():
            where = ", ".join(
                f"{phase} {each[phase]:.1%}" for phase in results[side][0].shares if each[phase]
            )
            lines.append(f"- {side}: peak memory {each['peak_memory_mb']:,.0f} MB; time: {where}")
        parts.append("\n".join(lines))
        data[name] = {"rates": comparison.rates, "medians": sides}
    save(f"kept_passes_{network}", "\n\n".join(parts), data)


if __name__ == "__main__":
    main()
