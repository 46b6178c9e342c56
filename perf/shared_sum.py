"""Speed-up by summing through shared memory instead of gloo's all-reduce, between processes of one machine.

    venv/bin/python -m perf.shared_sum [--ranks 2 4] [--seconds 4]

Before each sum the processes compute for a moment, as in training (perf/cluster_scaling/reduce.py).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from functools import partial
from typing import Any

from perf.cluster_scaling.reduce import COMPUTE_SECONDS, IN_A_ROW, SMALL, fixed_work, timed, times
from perf.measure import save

SIZES = (SMALL, 1_369_792, 2_505_024)  # a few numbers; gradients of the Nature CNN and of the IMPALA-CNN
WAYS = ("gloo", "shared memory")


def be_rank(rank: int, ranks: int, path: str, descriptor: Any, seconds: float, results: Any) -> None:
    """Measure with the other processes; rank 0 puts {way: {bytes: seconds}} into `results`."""
    import torch
    import torch.distributed as dist

    from rlcb.parallel.gloo import GlooCommunicator, use_loopback
    from rlcb.parallel.shared_sum import SharedSum
    from rlcb.processes.shared_memory import map_shared

    use_loopback()
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    if ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    communicator = GlooCommunicator(dist.FileStore(path, ranks), rank, ranks, 60.0)
    shared = SharedSum(map_shared(descriptor.detach()), rank, ranks)
    compute = fixed_work(COMPUTE_SECONDS)
    found: dict[str, dict[int, float]] = {way: {} for way in WAYS}
    sums = {"gloo": communicator.sum_, "shared memory": lambda message: shared.sum_(message, lambda: None)}
    for size in SIZES:
        message = torch.zeros(size // 4)
        count = IN_A_ROW if size == SMALL else 1
        for way in WAYS:
            work = partial(times, count, sums[way], message)
            found[way][size] = timed(compute, work, communicator, seconds) / count
    if rank == 0:
        results.put(found)
    communicator.barrier()
    communicator.close()


def measure(ranks: int, seconds: float) -> dict[str, dict[int, float]]:
    """Return the seconds of a sum over `ranks` processes by way and size."""
    from multiprocessing import reduction

    from rlcb.parallel.shared_sum import memory_bytes
    from rlcb.processes.shared_memory import open_shared

    context = multiprocessing.get_context("spawn")
    results, descriptor = context.Queue(), open_shared(memory_bytes(ranks, max(SIZES)))
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(ranks):
            arguments = (ranks, f"{folder}/store", reduction.DupFd(descriptor), seconds, results)
            processes.append(context.Process(target=be_rank, args=(rank, *arguments)))
            processes[-1].start()
        found: dict[str, dict[int, float]] = results.get(timeout=120)
        for process in processes:
            process.join(30)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each sum")
    options = parser.parse_args()
    lines = ["| processes | bytes | gloo, ms | shared memory, ms | ratio |", "|---|---|---|---|---|"]
    data: dict[str, Any] = {}
    for ranks in options.ranks:
        data[str(ranks)] = found = measure(ranks, options.seconds)
        for size in SIZES:
            gloo, shared = (found[way][size] * 1e3 for way in WAYS)
            lines.append(f"| {ranks} | {size:,} | {gloo:.2f} | {shared:.2f} | {gloo / shared:.1f} |")
    save("shared_sum", "\n".join(lines), json.loads(json.dumps({"seconds": data})))


if __name__ == "__main__":
    main()
