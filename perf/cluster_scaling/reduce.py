"""How long sums take between ranks on hosts that links join.

    python -m perf.cluster_scaling.reduce --rank 0 --size 2 --address ... --port ... --device ... --bytes ...

is one rank. Before each sum the ranks compute for a moment, as they do in training: what they send is
in no cache any more, and the threads that send it have been asleep.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.cluster_scaling.link import Hosts
from perf.training_runs import environment
from rlcb.parallel.shared_sum import SharedSum, is_available, memory_bytes
from rlcb.paths import PROJECT
from rlcb.processes.shared_memory import map_shared, open_shared
from tests.cluster_runs import free_port

if TYPE_CHECKING:
    from rlcb.cluster.summation import Summation
    from rlcb.parallel.gloo import GlooCommunicator

SMALL = 32  # bytes
IN_A_ROW = 3  # short sums behind a piece of computing, as they come in training
COMPUTE_SECONDS = 0.007
LEAST, MOST = 6, 200  # repeats
TRIMMED = 20  # one in so many, of the largest and of the smallest
GATHERED = 1024  # bytes that a rank has for rank 0 after an update, about
RANK_SECONDS = 120.0
WAYS = SHARED, OVER_GLOO, DIRECT = "hierarchical", "hierarchical over gloo", "direct"


def all_reduce_times(hosts: Hosts, per_host: int, sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Return the measurements of `per_host` ranks on each host.

    They are `all_reduce`, bytes -> seconds, with gloo over all ranks; `direct`, in direct messages, with
    several ranks on each of several hosts after sums in shared memory; then also `hierarchical`, through
    shared memory, if the system can, and `hierarchical over gloo`; `hidden`, bytes -> the share that
    computing hides; `gather`, seconds; `connections`, open sockets of rank 0. `seconds` is how long to repeat
    each.
    """
    ranks, cores = len(hosts.names) * per_host, sorted(os.sched_getaffinity(0))
    processes: list[subprocess.Popen[str]] = []
    memories = [open_shared(memory_bytes(per_host, max(sizes))) for _ in hosts.names]
    place = (
        "--size",
        ranks,
        "--address",
        hosts.addresses[0],
        "--port",
        free_port(),
        "--device",
        hosts.device,
    )
    try:
        for rank in range(ranks):
            # More ranks than cores go where there is room at the moment.
            pinned = ["taskset", "-c", cores[rank]] if ranks <= len(cores) else []
            words = [*hosts.enter(rank // per_host), *pinned, sys.executable]
            words += ["-m", "perf.cluster_scaling.reduce", "--rank", rank, *place, "--seconds", seconds]
            memory = memories[rank // per_host]
            words += ["--per-host", per_host, "--memory", memory, "--bytes", *sizes]
            processes.append(
                subprocess.Popen(
                    [str(word) for word in words],
                    cwd=PROJECT,
                    env={**environment(), "TORCH_CPP_LOG_LEVEL": "ERROR"},  # no host here has a name
                    stdout=subprocess.PIPE,
                    text=True,
                    pass_fds=(memory,),
                )
            )
        outputs = [process.communicate(timeout=RANK_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        for memory in memories:
            os.close(memory)
    if any(process.returncode for process in processes):
        raise RuntimeError("a rank of an all-reduce failed")
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    for name in ("all_reduce", *WAYS):
        found[name] = {int(size): value for size, value in found[name].items()}
    return found


def be_rank(arguments: argparse.Namespace) -> None:
    """Measure with the other ranks; rank 0 prints what it found."""
    os.environ["GLOO_SOCKET_IFNAME"] = arguments.device
    import torch
    import torch.distributed as dist

    from rlcb.parallel.gloo import GlooCommunicator

    torch.set_num_threads(1)
    rank, ranks = arguments.rank, arguments.size
    store = dist.TCPStore(arguments.address, arguments.port, is_master=rank == 0, wait_for_workers=False)
    communicator = GlooCommunicator(store, rank, ranks, RANK_SECONDS)
    compute = fixed_work(COMPUTE_SECONDS)
    found: dict[str, Any] = {name: {} for name in ("all_reduce", "hidden", *WAYS)}
    ways = other_ways(rank, ranks, arguments.per_host, arguments.memory)
    for size in arguments.bytes:
        message = torch.zeros(max(1, size // 4))
        count = IN_A_ROW if size == SMALL else 1
        work = partial(times, count, communicator.sum_, message)
        found["all_reduce"][size] = alone = timed(compute, work, communicator, arguments.seconds) / count
        for name, way in ways.items():
            work = partial(times, count, way.sum_, message)
            found[name][size] = timed(compute, work, communicator, arguments.seconds) / count
        if size != SMALL:
            both = timed(compute, partial(overlapped, compute, message), communicator, arguments.seconds)
            found["hidden"][size] = hidden_share(alone, timed(nothing, compute, communicator, 0.2), both)
    found["gather"] = gather_seconds(communicator, arguments.seconds)
    descriptors = Path("/proc/self/fd").iterdir()
    found["connections"] = sum("socket:" in os.path.realpath(each) for each in descriptors)
    if rank == 0:
        print(json.dumps(found), flush=True)
    communicator.barrier()
    communicator.close()


def other_ways(rank: int, ranks: int, per_host: int, memory: int) -> dict[str, Summation]:
    """Return the ways to sum but gloo's over all ranks, by name; none if there is one host of several ranks.

    `memory` is the descriptor of the memory that this host's ranks share.
    """
    from rlcb.cluster.summation import Direct, Hierarchy

    if per_host == 1:
        return {DIRECT: Direct()}
    if per_host == ranks:
        return {}
    hosts = [range(first, first + per_host) for first in range(0, ranks, per_host)]
    over_gloo = Hierarchy(rank, hosts, timedelta(seconds=RANK_SECONDS))
    if not is_available():
        return {OVER_GLOO: over_gloo}
    shared = copy.copy(over_gloo)  # the connections are the same
    shared.shared = SharedSum(map_shared(memory), rank % per_host, per_host)
    return {OVER_GLOO: over_gloo, SHARED: shared, DIRECT: shared.directly()}


def fixed_work(seconds: float) -> Callable[[], None]:
    """Work of always the same amount, which takes about so long."""
    import torch

    matrix = torch.rand(512, 512)
    start = time.perf_counter()
    for _ in range(10):
        torch.mm(matrix, matrix)
    count = max(1, round(seconds / ((time.perf_counter() - start) / 10)))
    return partial(times, count, torch.mm, matrix, matrix)


def times(count: int, work: Callable[..., Any], *arguments: Any) -> None:
    for _ in range(count):
        work(*arguments)


def nothing() -> None:
    pass


def overlapped(compute: Callable[[], None], message: Any) -> None:
    """An all-reduce during which this rank computes."""
    import torch.distributed as dist

    going = dist.all_reduce(message, async_op=True)
    compute()
    going.wait()


def hidden_share(alone: float, compute: float, both: float) -> float:
    """Return the share of an all-reduce that computing hid, of what it could hide: 0 to 1."""
    return min(1.0, max(0.0, (alone + compute - both) / min(alone, compute)))


def timed(
    compute: Callable[[], None], work: Callable[[], None], communicator: GlooCommunicator, seconds: float
) -> float:
    """Seconds of `work` behind `compute`, of the rank that comes to it last; the mean over repeats that take
    about `seconds`, the largest and smallest of them not counted."""
    import torch

    def once() -> float:
        compute()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    found = [once() for _ in range(LEAST)]
    (mean,) = communicator.sum_floats([sum(found[1:]) / (LEAST - 1) / communicator.world_size])
    repeats = max(LEAST, min(MOST, int(seconds / (mean + COMPUTE_SECONDS))))
    found = [once() for _ in range(repeats)]
    table = torch.zeros(communicator.world_size, repeats)
    table[communicator.rank] = torch.tensor(found)
    last, _ = communicator.sum_(table).min(dim=0)
    kept = sorted(last.tolist())[repeats // TRIMMED : repeats - repeats // TRIMMED]
    return statistics.mean(kept)


def gather_seconds(communicator: GlooCommunicator, seconds: float) -> float:
    """Return the seconds in which rank 0 gathers a short value of every rank: the median of repeats."""
    import torch
    import torch.distributed as dist

    value, found = torch.zeros(GATHERED, dtype=torch.uint8), []
    parts = [torch.empty_like(value) for _ in range(communicator.world_size)]
    end = time.perf_counter() + seconds
    while communicator.from_main(float(time.perf_counter() < end)):
        start = time.perf_counter()
        dist.gather(value, parts if communicator.is_main else None)
        found.append(time.perf_counter() - start)
    return communicator.from_main(statistics.median(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("rank", "size", "per-host", "memory", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--bytes", nargs="+", type=int, required=True)
    be_rank(parser.parse_args())


if __name__ == "__main__":
    main()
