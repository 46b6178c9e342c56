"""Measurements of the nodes of a cluster and of the network between them: `rlcb check-cluster`."""

from __future__ import annotations

import statistics
import time
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from rlcb.cluster.communicator import ClusterCommunicator
from rlcb.cluster.network import use_interface
from rlcb.cluster.rendezvous import MeetingPoint, join_world
from rlcb.cluster.watchdog import Watchdog
from rlcb.config.settings import ClusterConfig
from rlcb.cpu import usable_cores
from rlcb.parallel.world import World
from rlcb.text import counted
from rlcb.training.worker_context import WorkerContext

PINGS, MATRIX = 50, 1024  # round trips per pair of ranks; rows and columns of the multiplied matrices
CLOCK_LIMIT_SECONDS = 1.0  # a larger clock offset is a warning
SLOW_SPEED = 0.85  # a core slower than this fraction of the median is a warning


def check_cluster(world: World, config: ClusterConfig, megabytes: float) -> None:
    """Measure all ranks and print the results on rank 0. Every rank calls it. Raises UsageError, RunError."""
    torch.set_num_threads(1)
    interface = use_interface(world, config.network_interface)
    point = MeetingPoint(world, config.timeout_seconds)
    store = point.connect()
    settings = {"num_nodes": world.num_nodes, "--megabytes": megabytes}
    names = join_world(store, world, settings, config.timeout_seconds, lambda: None)
    watch = Watchdog(point.connect, world, names, config.timeout_seconds, WorkerContext())
    communicator = ClusterCommunicator(PrefixStore("gloo", store), world, config, watch)
    rows = communicator.gather(describe_rank(interface, communicator))
    pairs = [{}, *(measure_pair(communicator, rank, megabytes) for rank in range(1, world.size))]
    latency, seconds = measure_all_reduce(communicator, megabytes)
    if rows is not None:
        print_ranks(world, names, rows, pairs)
        print(
            f"all-reduce over {counted(world.size, 'rank')}: {latency * 1e6:.0f} us for one number, "
            f"{seconds * 1e3:.1f} ms for {megabytes:g} MB ({megabytes / seconds:.0f} MB/s)"
        )
        print_warnings(names, rows, pairs)
    communicator.barrier()
    watch.close()


def describe_rank(interface: str, communicator: ClusterCommunicator) -> dict[str, Any]:
    """Return this rank's interface, cores, clock rate in MHz and speed in GFLOP/s.

    The speed is that of one thread multiplying matrices while all ranks do so.
    """
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
        "gflops": 2 * MATRIX**3 / best / 1e9,
        "mhz": frequency.current if frequency else None,
    }


def measure_pair(communicator: ClusterCommunicator, other: int, megabytes: float) -> dict[str, float]:
    """Measure the connection between rank 0 and rank `other`. Every rank calls it.

    Returns, on rank 0 only, the shortest round trip and the clock offset of `other` in seconds and the
    bandwidth from rank 0 in MB/s; on all other ranks an empty or meaningless dictionary.
    """
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
    """Send `content` from rank 0 to rank `other`, which replies with its clock in `answer`."""
    if rank == 0:
        dist.send(content, other)
        dist.recv(answer, other)
    else:
        dist.recv(content, 0)
        answer.fill_(time.time())
        dist.send(answer, 0)


def measure_all_reduce(communicator: ClusterCommunicator, megabytes: float) -> tuple[float, float]:
    """Return the seconds of an all-reduce over all ranks, of one number and of `megabytes`."""
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


def print_ranks(
    world: World, names: list[str], rows: list[dict[str, Any]], pairs: list[dict[str, float]]
) -> None:
    """Print a table with one line per rank; `rows` and `pairs` are the measurements by rank."""
    print(f"{counted(world.num_nodes, 'node')}, {counted(world.size, 'rank')}, started by {world.launcher}")
    heads = ("interface", "cores", "GFLOP/s", "MHz", "round trip", "MB/s", "clock")
    print(f"{'rank':<24}" + "".join(f"{head:>12}" for head in heads))
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


def print_warnings(names: list[str], rows: list[dict[str, Any]], pairs: list[dict[str, float]]) -> None:
    """Print a warning for each rank that is slow or has a wrong clock."""
    typical = statistics.median(row["gflops"] for row in rows)
    for name, row, pair in zip(names, rows, pairs, strict=True):
        if row["gflops"] < SLOW_SPEED * typical:
            speed = row["gflops"] / typical
            print(f"warning: {name} computes at {speed:.0%} of the median; all ranks wait for it")
        if abs(pair.get("offset", 0.0)) > CLOCK_LIMIT_SECONDS:
            print(f"warning: the clock of {name} is {pair['offset']:+.1f} s off that of rank 0")
