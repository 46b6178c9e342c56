"""The ranks of a node share memory, sum through it, and notice when one of them has ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from rlcb.cluster.node_group import NodeGroup
from rlcb.cluster.node_memory import NodePeers, share_memory
from rlcb.errors import PeerLost
from rlcb.parallel import shared_sum
from rlcb.parallel.shared_sum import SharedSum, memory_bytes
from rlcb.processes.shared_memory import open_shared

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not shared_sum.is_available(), reason="only for Linux on x86-64"),
]

RANKS, SIZE = 3, 5_001


class Watch:
    """A watchdog that finds nothing, and agrees with every reason to leave."""

    def __init__(self) -> None:
        self.checks = 0
        self.is_waiting = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        self.is_waiting = True
        yield
        self.is_waiting = False

    def check(self) -> None:
        assert self.is_waiting
        self.checks += 1

    def agree(self, leaving: Exception) -> Exception:
        return leaving


class Cluster:
    """One rank of a node of RANKS ranks; sums over gloo are refused."""

    local_size = RANKS

    def __init__(self, local_rank: int, memory: Any, peers: NodePeers) -> None:
        self.local_rank, self.watch = local_rank, Watch()
        self.memory, self.peers = memory, peers

    def share_sums(self, hierarchy: Any, vector_bytes: int) -> None:
        assert memory_bytes(RANKS, vector_bytes) <= len(self.memory)
        hierarchy.shared = SharedSum(self.memory, self.local_rank, RANKS)
        hierarchy.check = self.peers.check

    def begin(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a sum over gloo")

    wait = begin


def on_all_ranks(work: Callable[[int, Any, NodePeers], Any]) -> list[Any]:
    """What `work` returns by rank; it gets the rank, the node's memory and the connections to other ranks.
    The ranks are threads."""
    store = HashStore()

    def rank(number: int) -> Any:
        world = SimpleNamespace(node_rank=1, local_rank=number, num_workers=RANKS)
        size = memory_bytes(RANKS, 4 * SIZE)
        return work(number, *share_memory(store, world, "sums", lambda: open_shared(size), Watch()))  # type: ignore[arg-type]

    with ThreadPoolExecutor(RANKS) as pool:
        return [each.result(30) for each in [pool.submit(rank, number) for number in range(RANKS)]]


def vector(rank: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(rank))


def test_all_ranks_of_a_node_share_the_memory() -> None:
    barrier = threading.Barrier(RANKS, timeout=30)

    def work(rank: int, memory: Any, peers: NodePeers) -> bytes:
        memory[rank] = rank + 1
        barrier.wait()
        peers.check()
        barrier.wait()
        return bytes(memory[:RANKS])

    assert on_all_ranks(work) == [bytes([1, 2, 3])] * RANKS


def test_a_group_sums_gradients_through_the_shared_memory_from_its_first_reduction_on() -> None:
    def work(rank: int, memory: Any, peers: NodePeers) -> torch.Tensor:
        hierarchy: Any = SimpleNamespace(shared=None, node="gloo", check=None)
        group = NodeGroup(Cluster(rank, memory, peers), hierarchy)  # type: ignore[arg-type]
        sums = vector(rank)
        reduction = group.reduction(sums, [])
        reduction.finish()
        return sums

    expected = sum(vector(rank).double() for rank in range(RANKS))
    first, *others = on_all_ranks(work)
    assert abs(first - expected).max() < 1e-6
    assert all(torch.equal(each, first) for each in others)


@pytest.mark.parametrize("ended", range(RANKS))
def test_the_first_rank_notices_that_another_one_has_ended_and_the_others_that_it_has(ended: int) -> None:
    def work(rank: int, memory: Any, peers: NodePeers) -> str:
        if rank == ended:
            peers.close()
            return "ended"
        hierarchy: Any = SimpleNamespace(shared=None, node="gloo", check=None)
        cluster = Cluster(rank, memory, peers)
        group = NodeGroup(cluster, hierarchy)  # type: ignore[arg-type]
        group.reduction(torch.zeros(SIZE), [])
        try:
            group.sum_(torch.zeros(SIZE))
        except PeerLost as lost:
            peers.close()  # as at the end of its process
            assert cluster.watch.checks
            return str(lost)
        return "summed"

    lost = "Connection closed by another rank of this node"
    assert on_all_ranks(work) == ["ended" if rank == ended else lost for rank in range(RANKS)]
