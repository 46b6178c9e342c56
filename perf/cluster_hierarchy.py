"""Speed-up by summing within each node first: hosts of several ranks connected by a shaped link.

    venv/bin/python -m perf.cluster_hierarchy --rate 100mbit [--ranks 4] [--rounds 3] [--only sums runs]
    venv/bin/python -m perf.cluster_hierarchy --rate 1gbit --delay 1 --hosts 4 --ranks 1

As root, with iproute2: the hosts are network namespaces of this machine, and their ranks share its cores.
First the time of a sum of a few bytes and of a gradient of the Nature CNN, next to what the model of
docs/scaling.md computes. Then the timesteps per second of A2C, which sums most often, in alternating rounds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from perf.cluster_reduction import rows_of_run
from perf.cluster_scaling.data import load
from perf.cluster_scaling.link import RATES, hosts
from perf.cluster_scaling.reduce import DIRECT, OVER_GLOO, SHARED, SMALL, all_reduce_times
from perf.cluster_scaling.ring import (
    direct_parts,
    hierarchical_parts,
    link_hop,
    nested_ring_parts,
    ring_parts,
)
from perf.measure import RESULTS, interleave, save, table

GRADIENT = 1_369_792  # bytes of the Nature CNN's gradient
RING = "ring"
WAYS = {
    RING: ("--set", "cluster.reduction=ring"),
    "hierarchical": ("--set", "cluster.reduction=hierarchical"),
    "direct": ("--set", "cluster.reduction=direct"),
    "auto": ("--set", "cluster.reduction=auto"),
}
STEPS, UPDATES, WARM = 16, 14, 4


@dataclass(frozen=True)
class Cluster:
    """Hosts of so many ranks, the rate of their links as tc writes it, and seconds of delay one way."""

    hosts: int
    ranks: int
    rate: str
    delay: float

    @property
    def name(self) -> str:
        delay = f"_{1e3 * self.delay:g}ms" if self.delay else ""
        return f"{self.rate}{delay}" + ("" if self.hosts == 2 else f"_{self.hosts}_hosts")


def measure_sums(cluster: Cluster, seconds: float) -> list[dict[str, Any]]:
    """Return one row per way and size: seconds of a sum, measured and computed."""
    count, ranks, rate = cluster.hosts, cluster.ranks, RATES[cluster.rate]
    with hosts(count, rate, cluster.delay) as place:
        found = all_reduce_times(place, ranks, (SMALL, GRADIENT), seconds)
    machine = load(RESULTS).machine()
    network = link_hop(machine.wire, rate, cluster.delay)
    place = (count, ranks, network, machine.local)
    models: dict[str, Callable[[int], dict[str, float]]] = {
        RING: lambda size: ring_parts(size, *place),
        OVER_GLOO: lambda size: nested_ring_parts(size, *place),
        SHARED: lambda size: hierarchical_parts(size, *place, machine.sharing),
        DIRECT: lambda size: direct_parts(size, count, ranks, network, machine.sharing),
    }
    measured = {RING: found["all_reduce"], **{way: found[way] for way in (OVER_GLOO, SHARED, DIRECT)}}
    return [
        {
            "way": way,
            "bytes": size,
            "measured": measured[way][size],
            "computed": sum(model(size).values()),
        }
        for size in (SMALL, GRADIENT)
        for way, model in models.items()
        if measured[way]
    ]


def measure_run(cluster: Cluster, flags: Sequence[str], waits: list[float]) -> float:
    """Return timesteps per second of A2C, the median over updates; add the seconds of `sync` to `waits`."""
    envs = 4 * cluster.hosts * cluster.ranks
    rows = rows_of_run(
        cluster.rate, "train.py --algorithm a2c --mode distributed", "--env", "coinrun", "--num-envs", envs,
        "--n-steps", STEPS, "--set", "model.architecture=nature", "--num-workers", cluster.ranks,
        "--set", "parallel.check_every=1000000", "--total-timesteps", envs * STEPS * UPDATES, *flags,
        count=cluster.hosts, delay=cluster.delay,
    )[WARM:]  # fmt: skip
    waits.append(statistics.median(row["profile/sync_seconds"] for row in rows))
    return statistics.median(row["time/fps"] for row in rows)


def describe_sums(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| sum | bytes | measured, ms | computed, ms | error |", "|---|---|---|---|---|"]
    for row in rows:
        error = row["computed"] / row["measured"] - 1
        times = f"{row['measured'] * 1e3:,.2f} | {row['computed'] * 1e3:,.2f}"
        lines.append(f"| {row['way']} | {row['bytes']:,} | {times} | {error:+.0%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", choices=RATES, default="100mbit", help="the link, as tc writes it")
    parser.add_argument("--delay", type=float, default=0.0, help="milliseconds one way")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=4, help="ranks of each host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each sum")
    parser.add_argument("--only", nargs="+", choices=("sums", "runs"), default=("sums", "runs"))
    options = parser.parse_args()
    cluster = Cluster(options.hosts, options.ranks, options.rate, options.delay / 1e3)
    ranks = f"{cluster.ranks} rank{'s' if cluster.ranks > 1 else ''}"
    delay = f" and {options.delay:g} ms one way" if options.delay else ""
    texts = [f"{cluster.hosts} hosts of {ranks} each, joined by links of {options.rate}{delay}"]
    data: dict[str, Any] = asdict(cluster)
    if "sums" in options.only:
        data["sums"] = measure_sums(cluster, options.seconds)
        texts.append(describe_sums(data["sums"]))
    if "runs" in options.only:
        # With one rank a host, the hierarchy is the ring.
        ways = {name: flags for name, flags in WAYS.items() if cluster.ranks > 1 or name != "hierarchical"}
        waits: dict[str, list[float]] = {name: [] for name in ways}
        comparison = interleave(
            {name: partial(measure_run, cluster, flags, waits[name]) for name, flags in ways.items()},
            options.rounds,
        )
        data |= {"rates": comparison.rates, "sync_seconds": waits}
        texts.append(
            f"A2C on coinrun, Nature CNN, {4 * cluster.hosts * cluster.ranks} environments x {STEPS} steps, "
            f"{options.rounds} rounds in turn"
        )
        texts.append(table(comparison, RING, "timesteps/s"))
        for name, seconds in waits.items():
            texts.append(f"- {name}: {statistics.median(seconds):.3f} s of an update wait for sums")
    save(f"cluster_hierarchy_{cluster.name}_{'_'.join(options.only)}", "\n\n".join(texts), data)


if __name__ == "__main__":
    main()
