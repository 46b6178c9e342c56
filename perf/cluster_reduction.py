"""Speed-up by overlap and compression of the all-reduce, or by averages of nodes that learn by themselves, on
two ranks connected by a shaped link.

    venv/bin/python -m perf.cluster_reduction [--rates 1gbit 100mbit] [--architecture nature]
    venv/bin/python -m perf.cluster_reduction --ways averages --rates 100mbit 10mbit
    venv/bin/python -m perf.cluster_reduction --ways low_rank --rates 100mbit 10mbit --rounds 2

As root, with iproute2: the ranks are in network namespaces. For each link: the timesteps per second of whole
updates, and the time of an update that goes into waiting for the sum. Rounds alternate, so that what else the
machine does meets all alike.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from perf.cluster_scaling.link import RATES, hosts
from perf.measure import Comparison, interleave, save, table
from tests import runs
from tests.cluster_runs import PPO, Nodes

PLAIN = "one all-reduce"
BOTH = {"overlap, bf16": ("--set", "cluster.overlap=true", "--set", "cluster.compression=bf16")}
SELDOM = ("--set", "logging.snapshot_seconds=60")  # over 10 Mb/s, copies of all states take seconds
POWERSGD = ("--set", "cluster.compression=powersgd", *SELDOM)
WAYS: dict[str, dict[str, tuple[str, ...]]] = {
    "reduction": {
        PLAIN: (),
        "overlap": ("--set", "cluster.overlap=true"),
        "bf16": ("--set", "cluster.compression=bf16"),
        **BOTH,
    },
    "averages": {
        PLAIN: (),
        **BOTH,
        "averages every update": ("--set", "cluster.average_every=1"),
        "averages every 4 updates": ("--set", "cluster.average_every=4"),
    },
    "low_rank": {
        PLAIN: SELDOM,
        "bf16": ("--set", "cluster.compression=bf16", *SELDOM),
        "powersgd, rank 2": (*POWERSGD, "--set", "cluster.powersgd_rank=2"),
        "powersgd, rank 4": (*POWERSGD, "--set", "cluster.powersgd_rank=4"),
        "averages every 4 updates": ("--set", "cluster.average_every=4", *SELDOM),
    },
}
ENVS, STEPS, BATCH, EPOCHS, UPDATES, WARM = 16, 32, 128, 2, 9, 1
HIDDEN = {"nature": 512, "impala": 256}
FEW_UPDATES = 2
"""Updates of a run with --ways low_rank that sums whole gradients. Over 10 Mb/s, each takes 8 to 16 s."""


def rows_of_run(
    rate: str, script: str, *flags: object, count: int = 2, delay: float = 0.0
) -> list[dict[str, Any]]:
    """Train on hosts joined by links of this rate and delay, and return the rows of metrics.jsonl."""
    with tempfile.TemporaryDirectory() as folder, hosts(count, RATES[rate], delay) as place:
        with Nodes(place.addresses[0], place.names) as nodes:
            output = ("--set", "logging.tensorboard=false", "--output-dir", Path(folder) / "run")
            nodes.start(script, *flags, *output)
            for code, _, errors in nodes.wait(300):
                if code:
                    raise SystemExit(errors)
        return runs.rows(Path(folder) / "run")


def measure(rate: str, flags: tuple[str, ...], architecture: str, updates: int, waits: list[float]) -> float:
    """Timesteps per second over all updates but the first; `waits` keeps the seconds of `sync` in an update,
    the mean of both ranks."""
    rows = rows_of_run(
        rate, PPO, "--env", "coinrun", "--num-envs", ENVS, "--n-steps", STEPS, "--batch-size", BATCH,
        "--n-epochs", EPOCHS, "--set", f"model.architecture={architecture}", "--num-workers", 1,
        "--set", f"model.hidden_size={HIDDEN[architecture]}",
        "--total-timesteps", ENVS * STEPS * updates, *flags,
    )[WARM:]  # fmt: skip
    waits.append(statistics.fmean(row["profile/sync_seconds"] for row in rows))
    return statistics.harmonic_mean([row["time/fps"] for row in rows])


def describe(rate: str, comparison: Comparison, waits: Mapping[str, Sequence[float]]) -> str:
    """Return the measurements over one link."""
    lines = [f"### {rate}", "", table(comparison, PLAIN, "timesteps/s"), ""]
    for name, seconds in waits.items():
        lines.append(f"- {name}: {statistics.median(seconds):.3f} s of an update wait for the sum")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"], help="links, as tc writes them")
    parser.add_argument("--ways", default="reduction", choices=tuple(WAYS))
    parser.add_argument("--architecture", default="nature", choices=("nature", "impala"))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    texts, data = [], {}
    for rate in arguments.rates:
        print(rate, flush=True)
        ways = WAYS[arguments.ways]
        waits: dict[str, list[float]] = {name: [] for name in ways}
        short = (PLAIN, "bf16") if arguments.ways == "low_rank" else ()
        comparison = interleave(
            {
                name: partial(
                    measure,
                    *(rate, flags, arguments.architecture, FEW_UPDATES if name in short else UPDATES),
                    waits[name],
                )
                for name, flags in ways.items()
            },
            arguments.rounds,
        )
        texts.append(describe(rate, comparison, waits))
        data[rate] = {"rates": comparison.rates, "sync_seconds": waits}
    title = (
        f"PPO on coinrun, {arguments.architecture} network {HIDDEN[arguments.architecture]} wide, {ENVS} "
        f"environments x {STEPS} steps, minibatches of {BATCH}, {EPOCHS} epochs: two ranks of one "
        f"thread that share one machine, joined by a shaped link, {arguments.rounds} rounds in turn"
    )
    save(f"cluster_{arguments.ways}_{arguments.architecture}", "\n\n".join([title, *texts]), data)


if __name__ == "__main__":
    main()
