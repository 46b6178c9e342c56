"""Elastic IMPALA between two hosts joined by a shaped link, one of them slow, against synchronous IMPALA.

    venv/bin/python -m perf.elastic
    venv/bin/python -m perf.elastic --compression --game starpilot

As root, with iproute2: the hosts are network namespaces, each kept on a core of its own. The first host has
the learner and an actor, the second one only an actor, or in the synchronous run a learner and an actor as
well. A slow host shares its core with three busy programs. Rounds alternate. With --compression: elastic runs
whose second host compresses its unrolls if that is faster, or never.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from perf.measure import interleave, save, table
from rlcb.text import counted
from tests import runs
from tests.cluster_runs import IMPALA, Nodes, start, two_hosts

ALONE = "one host alone"
ENVS, STEPS, UNROLLS, SECONDS, WARM_SECONDS, BUSY = 16, 16, 8, 14, 4, 3
COMPRESSION_SECONDS = 24


@contextlib.contextmanager
def slowed(core: int, programs: int) -> Iterator[None]:
    """So many busy programs on one core."""
    words = ["taskset", "-c", str(core), "sh", "-c", "while :; do :; done"]
    spinners = [subprocess.Popen(words) for _ in range(programs)]
    try:
        yield
    finally:
        for each in spinners:
            each.kill()
            each.wait()


def measure(
    elastic: bool, hosts: int, rate: str, busy: int, flags: tuple[object, ...]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows and the record of a run."""
    each = ENVS if elastic else ENVS * hosts
    flags = (
        *("--num-envs", each, "--n-steps", STEPS, "--batch-size", UNROLLS * ENVS * STEPS),
        *("--num-actors", 1, "--set", "impala.num_learners=1", "--set", "logging.tensorboard=false"),
        *(("--elastic",) if elastic else ()),
        *flags,
    )
    with tempfile.TemporaryDirectory() as folder, two_hosts(rate) as (names, address), slowed(1, busy):
        output = Path(folder) / "run"
        with Nodes(address, names) as nodes:
            for node in range(hosts):
                inside = ["taskset", "-c", str(node), "ip", "netns", "exec", names[node]]
                place = nodes.place[2:] if elastic else nodes.place
                words = runs.command(IMPALA, *flags, *place, "--node-rank", node, "--output-dir", output)
                nodes.processes.append(start([*inside, *words]))
            for code, _, errors in nodes.wait(120):
                if code:
                    raise SystemExit(errors)
        return runs.rows(output), runs.record(output)


def total_rate(elastic: bool, hosts: int, rate: str, busy: int, flags: tuple[object, ...]) -> float:
    """Return the timesteps per second of a run after WARM_SECONDS."""
    rows, _ = measure(elastic, hosts, rate, busy, (*flags, "--duration", f"{SECONDS}s"))
    rows = [row for row in rows if row["time/elapsed_seconds"] > WARM_SECONDS]
    steps = rows[-1]["timesteps"] - rows[0]["timesteps"]
    return float(steps / (rows[-1]["time/elapsed_seconds"] - rows[0]["time/elapsed_seconds"]))


def remote_rate(rate: str, setting: str, shares: dict[str, list[float]], flags: tuple[object, ...]) -> float:
    """Return the timesteps per second that an elastic run learned from the second host; append the share of
    the bytes that its unrolls had on the network to `shares`."""
    flags = (*flags, "--duration", f"{COMPRESSION_SECONDS}s", "--set", f"impala.compress_unrolls={setting}")
    _, record = measure(True, 2, rate, 0, flags)
    remote = record["impala"]["remote"]
    shares.setdefault(f"{rate} {setting}", []).append(
        remote["received_bytes"] / max(1, remote["unroll_bytes"])
    )
    unrolls = sum(count for host, count in remote["unrolls"].items() if host.endswith("(joined)"))
    return float(unrolls * ENVS * STEPS / (record["duration_hours"] * 3600))


def compare_compression(arguments: argparse.Namespace, flags: tuple[object, ...]) -> None:
    """Measure elastic runs with and without compression over two links."""
    shares: dict[str, list[float]] = {}
    ways = {
        f"{words}, {'compressed if faster' if setting == 'auto' else 'never compressed'}": partial(
            remote_rate, rate, setting, shares, flags
        )
        for words, rate in (("100 Mb/s", "100mbit"), ("10 Mb/s", "10mbit"))
        for setting in ("never", "auto")
    }
    comparison = interleave(ways, arguments.rounds)
    title = (
        f"Timesteps per second that a run of IMPALA on {arguments.game} learns from an actor of another host "
        f"({ENVS} environments x {STEPS} steps in an unroll, {arguments.architecture} network), "
        f"{counted(arguments.rounds, 'round')} in turn of {COMPRESSION_SECONDS} s"
    )
    left = ", ".join(f"{way}: {statistics.median(found):.0%}" for way, found in shares.items())
    text = (
        f"{title}\n\n{table(comparison, next(iter(ways)), 'timesteps/s')}\n\n"
        f"Bytes on the network, of those of the unrolls: {left}."
    )
    save(f"elastic_compression_{arguments.game}", text, {"rates": comparison.rates, "shares": shares})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", default="nature", choices=("nature", "impala"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--game", default="coinrun")
    parser.add_argument("--compression", action="store_true")
    arguments = parser.parse_args()
    flags = ("--env", arguments.game, "--set", f"model.architecture={arguments.architecture}")
    if arguments.compression:
        compare_compression(arguments, flags)
        return
    ways = {
        ALONE: (True, 1, "1gbit", 0),
        "elastic, 1 Gb/s": (True, 2, "1gbit", 0),
        "elastic, 100 Mb/s": (True, 2, "100mbit", 0),
        "elastic, 1 Gb/s, second host slow": (True, 2, "1gbit", BUSY),
        "synchronous, 1 Gb/s": (False, 2, "1gbit", 0),
        "synchronous, 100 Mb/s": (False, 2, "100mbit", 0),
        "synchronous, 1 Gb/s, second host slow": (False, 2, "1gbit", BUSY),
    }
    comparison = interleave(
        {name: partial(total_rate, *way, flags) for name, way in ways.items()},
        arguments.rounds,
    )
    rounds = counted(arguments.rounds, "round")
    title = (
        f"IMPALA on {arguments.game}, {arguments.architecture} network, {ENVS} environments x {STEPS} steps "
        f"for each actor, batches of {UNROLLS} unrolls: two hosts of a core each that share one machine, "
        f"joined by a shaped link, {rounds} in turn of {SECONDS} s, without their first {WARM_SECONDS} s"
    )
    medians = {name: statistics.median(rates) for name, rates in comparison.rates.items()}
    text = f"{title}\n\n{table(comparison, ALONE, 'timesteps/s')}"
    save(f"elastic_{arguments.architecture}", text, {"rates": comparison.rates, "medians": medians})


if __name__ == "__main__":
    main()
