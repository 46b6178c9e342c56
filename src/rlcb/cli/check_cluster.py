"""Measure the nodes and network of a cluster before training: `python -m rlcb.cli.check_cluster --check`.

One process on each node, started as the training scripts are: by torchrun, by srun, or by hand.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from rlcb.cli.command import Parser, count, exit_code
from rlcb.cli.train_distributed import FLAGS, cluster_settings
from rlcb.cluster.communicator import ClusterCommunicator
from rlcb.cluster.launch import discover
from rlcb.cluster.network import use_interface
from rlcb.cluster.rendezvous import MeetingPoint, meet
from rlcb.cluster.watchdog import Starter, Watch
from rlcb.config.settings import ClusterConfig
from rlcb.cpu import cpu_model, usable_cores
from rlcb.errors import UsageError
from rlcb.parallel.world import World
from rlcb.text import counted

PINGS, MATRIX = 50, 1024
SMALLEST_MEGABYTES = 0.001
CLOCK_LIMIT_SECONDS, SLOW_SHARE = 1.0, 0.85


def main(argv: Sequence[str] | None = None) -> int:
    code = exit_code(lambda: run(make_parser().parse_args(argv)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # peers may be gone: nothing that would wait for them is run


def make_parser() -> Parser:
    parser = Parser(prog="python -m rlcb.cli.check_cluster", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", required=True, help="measure all nodes and the network"
    )
    parser.add_argument("--node-rank", type=count, metavar="N", help="number of this node, from 0")
    for name, key, kind, metavar, text in FLAGS:
        if name != "--num-workers":
            parser.add_argument(name, dest=key.split(".")[1], type=kind, metavar=metavar, help=text)
    parser.add_argument("--network-interface", metavar="NAME", help="interface that gradients travel over")
    parser.add_argument(
        "--megabytes", type=float, default=16.0, metavar="X", help="size of a transfer (default: 16)"
    )
    parser.add_argument(
        "--timeout-seconds", type=float, default=60.0, metavar="X", help="a silent rank ends the check"
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    if not SMALLEST_MEGABYTES <= arguments.megabytes < math.inf:
        raise UsageError(f"--megabytes {arguments.megabytes:g}: must be at least {SMALLEST_MEGABYTES:g}")
    given = {key: value for key, value in vars(arguments).items() if key in ClusterConfig.model_fields}
    config = cluster_settings({"cluster": given})
    world = discover(config, arguments.node_rank, os.environ)
    if world.local_rank is None:
        world = replace(world, num_workers=1, local_rank=0)
    torch.set_num_threads(1)
    interface = use_interface(world, config.network_interface)
    point = MeetingPoint(world, config.timeout_seconds)
    store = point.connect()
    told = {"num_nodes": world.num_nodes, "--megabytes": arguments.megabytes}
    names = meet(store, world, told, config.timeout_seconds, lambda: None)
    watch = Watch(point.connect, world, names, config.timeout_seconds, Starter())
    communicator = ClusterCommunicator(PrefixStore("gloo", store), world, config, watch)
    rows = communicator.gather(describe_rank(interface, communicator))
    pairs = [measure_pair(communicator, rank, arguments.megabytes) for rank in range(1, world.size)]
    latency, seconds = measure_all(communicator, arguments.megabytes)
    if rows is not None:
        print_table(world, names, rows, [{}, *pairs])
        print_all(world, latency, seconds, arguments.megabytes)
        print_warnings(names, rows, [{}, *pairs])
    communicator.barrier()
    watch.close()
    return 0


def describe_rank(interface: str, communicator: ClusterCommunicator) -> dict[str, Any]:
    """This rank's processor, its speed in GFLOP/s on one thread, all ranks computing at the same time."""
    matrix = torch.rand(MATRIX, MATRIX)
    torch.mm(matrix, matrix)
    communicator.barrier()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        best = min(best, time.perf_counter() - start)
    frequency = psutil.cpu_freq()
    return {
        "interface": interface,
        "cores": usable_cores(),
        "cpu": cpu_model(),
        "gflops": 2 * MATRIX**3 / best / 1e9,
        "mhz": frequency.current if frequency else None,
    }


def measure_pair(communicator: ClusterCommunicator, other: int, megabytes: float) -> dict[str, float]:
    """Between rank 0 and another: round trip and clock offset in seconds, MB/s one way; in rank 0 alone."""
    communicator.barrier()
    if communicator.rank not in (0, other):
        return {}
    small, large = torch.zeros(1, dtype=torch.float64), torch.zeros(int(megabytes * 250_000))

    def measure() -> dict[str, float]:
        trips, offsets = [], []
        for _ in range(PINGS):
            start = time.time()
            exchange(communicator.rank, small, small, other)
            end = time.time()
            trips.append(end - start)
            offsets.append(float(small) - (start + end) / 2)
        start = time.perf_counter()
        exchange(communicator.rank, large, small, other)
        seconds = time.perf_counter() - start
        shortest = min(trips)
        return {
            "round_trip": shortest,
            "offset": offsets[trips.index(shortest)],
            "mb_per_second": megabytes / max(1e-9, seconds - shortest / 2),
        }

    return communicator.wait_for_peers(measure)


def exchange(rank: int, content: torch.Tensor, answer: torch.Tensor, other: int) -> None:
    """Rank 0 sends `content` to rank `other`, which answers with its clock."""
    if rank == 0:
        dist.send(content, other)
        dist.recv(answer, other)
    else:
        dist.recv(content, 0)
        answer.fill_(time.time())
        dist.send(answer, 0)


def measure_all(communicator: ClusterCommunicator, megabytes: float) -> tuple[float, float]:
    """Seconds of an all-reduce of one number, and of `megabytes`, over all ranks."""
    results = []
    for size, repeats in ((1, PINGS), (int(megabytes * 250_000), 3)):
        tensor = torch.zeros(size)
        communicator.sum_(tensor)
        communicator.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            communicator.sum_(tensor)
        results.append((time.perf_counter() - start) / repeats)
    return results[0], results[1]


def print_table(
    world: World, names: list[str], rows: list[dict[str, Any]], pairs: list[dict[str, float]]
) -> None:
    print(f"{counted(world.num_nodes, 'node')}, {counted(world.size, 'rank')}, started by {world.launcher}")
    heads = ("rank", "interface", "cores", "GFLOP/s", "MHz", "round trip", "MB/s", "clock")
    print(f"{heads[0]:<24}" + "".join(f"{head:>12}" for head in heads[1:]))
    for name, row, pair in zip(names, rows, pairs, strict=True):
        mhz = "" if row["mhz"] is None else f"{row['mhz']:.0f}"
        cells = [row["interface"], str(row["cores"]), f"{row['gflops']:.1f}", mhz]
        if pair:
            cells += [
                f"{pair['round_trip'] * 1e6:.0f} us",
                f"{pair['mb_per_second']:.0f}",
                f"{pair['offset'] * 1e3:+.1f} ms",
            ]
        print(f"{name:<24}" + "".join(f"{cell:>12}" for cell in cells))


def print_all(world: World, latency: float, seconds: float, megabytes: float) -> None:
    print(
        f"all-reduce over {counted(world.size, 'rank')}: {latency * 1e6:.0f} us for one number, "
        f"{seconds * 1e3:.1f} ms for {megabytes:g} MB ({megabytes / seconds:.0f} MB/s)"
    )


def print_warnings(names: list[str], rows: list[dict[str, Any]], pairs: list[dict[str, float]]) -> None:
    typical = statistics.median(row["gflops"] for row in rows)
    for name, row, pair in zip(names, rows, pairs, strict=True):
        if row["gflops"] < SLOW_SHARE * typical:
            print(f"warning: {name} computes at {row['gflops'] / typical:.0%} of the median: all wait for it")
        if abs(pair.get("offset", 0.0)) > CLOCK_LIMIT_SECONDS:
            print(f"warning: the clock of {name} is {pair['offset']:+.1f} s off that of rank 0")


if __name__ == "__main__":
    main()
