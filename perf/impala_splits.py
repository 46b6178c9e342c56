"""Timesteps per second of parallel IMPALA with different numbers of actors and learners.

    venv/bin/python -m perf.impala_splits --network nature --rounds 3

Each run is the real script on coinrun; its rate is that of the updates after the first one. `auto` is the
split that the calibration before a run finds.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from perf.measure import interleave, save, table
from perf.training_runs import train
from rlcb import cpu

ENVS, STEPS = 32, 32
UPDATES = {"impala": 10, "nature": 72}


def run(network: str, split: tuple[int, int] | None, chosen: list[Any]) -> float:
    """Train with (actors, learners), or with the calibration's choice, which is appended to `chosen`."""
    settings = [f"model.architecture={network}", "impala.num_actors=null", "impala.num_learners=null"]
    if split is not None:
        settings[1:] = [f"impala.num_actors={split[0]}", f"impala.num_learners={split[1]}"]
    steps = ENVS * STEPS * UPDATES[network]
    flags = ("--num-envs", ENVS, "--n-steps", STEPS, "--total-timesteps", steps, "--num-threads", 1)
    result = train("train_impala_parallel.py", flags, settings)
    if split is None:
        chosen.append(result.record["impala"]["calibration"])
    return result.fps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", choices=sorted(UPDATES), default="nature")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    cores = cpu.usable_cores()
    actors = sorted({1, max(1, cores // 2), cores, 2 * cores})
    learners = sorted({1, max(1, cores // 2), cores})
    chosen: list[Any] = []
    sides = {
        f"{a} actors, {n} learners": partial(run, arguments.network, (a, n), chosen)
        for a in actors
        for n in learners
        if ENVS % a == 0
    }
    comparison = interleave(
        {"auto": partial(run, arguments.network, None, chosen), **sides}, arguments.rounds
    )
    best = max(sides, key=comparison.median)
    text = "\n".join(
        [
            f"Parallel IMPALA, {arguments.network} network, {ENVS} environments x {STEPS} steps, "
            f"{cores} cores",
            "",
            table(comparison, "auto", "timesteps/s"),
            "",
            "- chosen: "
            + ", ".join(
                f"{each['num_actors']} actors and {each['num_learners']} learners" for each in chosen
            ),
            f"- auto reached {comparison.ratio('auto', best):.2f} of the best split, {best}",
        ]
    )
    save(f"impala_splits_{arguments.network}", text, {"rates": comparison.rates, "chosen": chosen})


if __name__ == "__main__":
    main()
