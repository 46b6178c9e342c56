"""Sums over all ranks at once and within nodes first, between real processes over gloo."""

from __future__ import annotations

import copy
import os
import threading
from datetime import timedelta
from multiprocessing import reduction
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rlcb.cluster.summation import (
    SHORT_BYTES,
    Direct,
    Hierarchy,
    Ranks,
    Ring,
    SumThread,
    all_reduce_,
    new_group,
    rounded_total,
    sum_compressed_,
)
from rlcb.parallel.gloo import use_loopback
from rlcb.parallel.shared_sum import SharedSum, memory_bytes
from rlcb.processes.shared_memory import map_shared, open_shared
from tests import runs

pytestmark = pytest.mark.timeout(120)

SIZE = 1003  # no multiple of the number of ranks or nodes
LIMIT = timedelta(seconds=60)
LENGTHS = (1, 8, SHORT_BYTES // 16, SHORT_BYTES // 16 + 1)
"""Of vectors around the length up to which four ranks send whole ones."""
WAYS = ("ring", "direct", "hierarchy", "shared", "directly", "directly, shared")
NODES = {"equal nodes": [[0, 1], [2, 3]], "unequal nodes": [[0, 1, 2], [3]], "one node": [[0, 1, 2, 3]]}


def vector(rank: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(rank))


def be_rank(rank: int, folder: str, nodes: list[list[int]], memory: Any, results: Any) -> None:
    """Sum in every way; put what this rank gets into `results`. `memory` is that of its node."""
    use_loopback()
    torch.set_num_threads(1)
    size = sum(map(len, nodes))
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size, timeout=LIMIT
    )
    trio = new_group([0, 1, 2] if rank < 3 else [3], LIMIT)
    (members,) = (ranks for ranks in nodes if rank in ranks)
    shared = SharedSum(map_shared(memory.detach()), rank - members[0], len(members))
    ways: dict[str, Any] = {
        "ring": Ring(),
        "direct": Direct(),
        "hierarchy": Hierarchy(rank, nodes, LIMIT),
    }
    ways["shared"] = copy.copy(ways["hierarchy"])  # a second one cannot connect
    ways["shared"].shared = shared if len(members) > 1 else None
    ways["directly"], ways["directly, shared"] = (ways[name].directly() for name in ("hierarchy", "shared"))
    found = {}
    for name, way in ways.items():
        for compress, between in ((False, all_reduce_), (True, sum_compressed_)):
            found[name, compress] = vector(rank)
            way.sum_(found[name, compress], between)
        found[name, "int64"] = torch.tensor([rank, 2**40 * rank])
        way.sum_(found[name, "int64"])
    for length in LENGTHS:
        found["length", length] = short = torch.linspace(rank, rank + 1, length)
        Ranks(direct=True).sum_(short)
    if rank < 3:  # a number of ranks that is no power of two
        found["three"] = torch.tensor([1.0 + rank, 10.0**-rank])
        Ranks(trio, direct=True).sum_(found["three"])
    thread = SumThread()
    vectors = [vector(rank) * number for number in range(1, 6)]
    for work in [thread.submit(lambda each=each: way.sum_(each)) for each in vectors]:
        work.wait(LIMIT)
    found["in order"] = torch.stack(vectors)
    results.put((rank, {key: value.numpy() for key, value in found.items()}))
    dist.barrier()


@pytest.fixture(scope="module", params=NODES)
def sums(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """What each rank got, by rank."""
    context = runs.worker_server()
    results, nodes = context.Queue(), NODES[request.param]
    folder = str(tmp_path_factory.mktemp("store"))
    memories = [open_shared(memory_bytes(len(ranks), 4 * SIZE)) for ranks in nodes]
    of_rank = [memory for memory, ranks in zip(memories, nodes) for _ in ranks]
    processes = [
        context.Process(target=be_rank, args=(rank, folder, nodes, reduction.DupFd(memory), results))
        for rank, memory in enumerate(of_rank)
    ]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=90) for _ in processes)
    for process in processes:
        process.join(30)
    for memory in memories:
        os.close(memory)
    return [found[rank] for rank in range(4)]


@pytest.mark.parametrize("way", WAYS)
def test_every_rank_gets_the_sum(sums: list[dict[Any, Any]], way: str) -> None:
    expected = sum(vector(rank).double() for rank in range(4))
    for found in sums:
        assert abs(found[way, False] - expected.numpy()).max() < 1e-6
        assert found[way, "int64"].tolist() == [6, 6 * 2**40]
        assert (found[way, False] == sums[0][way, False]).all()


@pytest.mark.parametrize("way", WAYS)
def test_compressed_sums_are_rounded_once_before_and_once_after(sums: list[dict[Any, Any]], way: str) -> None:
    magnitudes = sum(vector(rank).abs() for rank in range(4)).numpy()
    expected = sum(vector(rank).double() for rank in range(4)).numpy()
    bound = 2**-8 * 1.01 * (magnitudes + abs(expected))  # half a unit of 8 bits, of the terms and of the sum
    for found in sums:
        assert (abs(found[way, True] - expected) <= bound).all()
        assert (found[way, True] == sums[0][way, True]).all()


def test_compression_rounds_every_number_that_leaves_a_node(sums: list[dict[Any, Any]]) -> None:
    rounded = torch.from_numpy(sums[0]["ring", True])
    assert torch.equal(rounded, rounded.to(torch.bfloat16).float())


@pytest.mark.parametrize("length", LENGTHS)
def test_direct_sums_of_short_and_long_vectors(sums: list[dict[Any, Any]], length: int) -> None:
    expected = sum(torch.linspace(rank, rank + 1, length).double() for rank in range(4)).numpy()
    for found in sums:
        assert abs(found["length", length] - expected).max() < 1e-5
        assert (found["length", length] == sums[0]["length", length]).all()


def test_a_direct_sum_of_three(sums: list[dict[Any, Any]]) -> None:
    for found in sums[:3]:
        assert found["three"].tolist() == pytest.approx([6.0, 1.11])
        assert (found["three"] == sums[0]["three"]).all()


def test_sums_in_the_thread_are_made_in_order(sums: list[dict[Any, Any]]) -> None:
    expected = sum(vector(rank) for rank in range(4)).numpy()
    for found in sums:
        for number, result in enumerate(found["in order"], 1):
            assert abs(result - number * expected).max() < 1e-5


def test_compression_over_many_ranks_adds_in_float32() -> None:
    """Added in bfloat16, 1,024 thirds would stop at 128, where a third is less than half a unit."""
    numbers = torch.full((1024, 1), 1 / 3).to(torch.bfloat16)
    assert abs(float(rounded_total(numbers)) / (1024 / 3) - 1) < 2**-8
    in_bfloat16 = torch.zeros(1, dtype=torch.bfloat16)
    for number in numbers:
        in_bfloat16 += number
    assert float(in_bfloat16) < 200


def test_a_pending_sum_times_out_and_passes_errors_on() -> None:
    release = threading.Event()
    thread = SumThread()
    slow = thread.submit(lambda: release.wait(10) and None)

    def fail() -> None:
        raise RuntimeError("Connection closed by peer")

    failing = thread.submit(fail)
    with pytest.raises(RuntimeError, match="not done yet"):
        slow.wait(timedelta(seconds=0.05))
    assert not slow.is_completed()
    release.set()
    slow.wait(LIMIT)
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        failing.wait(LIMIT)
    assert failing.is_completed()
