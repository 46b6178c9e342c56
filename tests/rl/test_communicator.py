"""The gloo communicator sums, gathers, and detects replicas that differ and peers that are gone."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlcb.errors import PeerLost, RunError
from rlcb.parallel.gloo import NETWORK_THREAD, GlooCommunicator, pickled, use_loopback
from rlcb.rl.communicator import Communicator
from tests import runs

pytestmark = pytest.mark.timeout(180)


def rank_main(rank: int, port: int, what: str, results: Any) -> None:
    communicator = GlooCommunicator(TCPStore("127.0.0.1", port, is_master=False), rank, 2, timeout_seconds=20)
    try:
        results.put((rank, globals()[what](communicator)))
    except RunError as error:
        results.put((rank, f"{type(error).__name__}: {error}"))


def two_ranks(what: str) -> list[Any]:
    """Run a function of this module in two processes and return what it gave, by rank."""
    use_loopback()
    context = runs.worker_server()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results = context.Queue()
    processes = [
        context.Process(target=rank_main, args=(rank, store.port, what, results), daemon=True)
        for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    try:
        found = dict(results.get(timeout=60) for _ in processes)
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    return [found[0], found[1]]


def network_thread(communicator: Communicator) -> list[int]:
    """The scheduling policies of gloo's threads for sockets."""
    communicator.barrier()
    threads = Path("/proc/self/task").iterdir()
    return [
        os.sched_getscheduler(int(each.name))
        for each in threads
        if (each / "comm").read_text().strip() == NETWORK_THREAD
    ]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads have names on Linux only")
def test_the_socket_thread_does_not_interrupt_computing_threads() -> None:
    assert two_ranks("network_thread") == [[os.SCHED_BATCH], [os.SCHED_BATCH]]


def talk(communicator: Communicator) -> Any:
    rank = communicator.rank
    same = torch.arange(5.0)
    communicator.require_equal(same, "the numbers")
    return (
        communicator.sum_(torch.tensor([1.0 + rank, 10.0])).tolist(),
        communicator.sum_floats([0.1, rank]),
        communicator.from_main(3.5 + rank),
        communicator.gather(("rank", rank)),
        communicator.is_main,
    )


def differ(communicator: Communicator) -> str:
    parameters = torch.zeros(1000)
    parameters[777] = 1e-7 * communicator.rank
    communicator.require_equal(parameters, "the parameters")
    return "equal"


def leave(communicator: Communicator) -> str:
    if communicator.rank == 1:
        communicator.close()
        return "left"
    communicator.sum_(torch.zeros(10))
    communicator.sum_(torch.zeros(10))
    return "summed"


def test_two_processes_sum_gather_and_follow_the_main_process() -> None:
    first, second = two_ranks("talk")
    assert first == ([3.0, 20.0], pytest.approx([0.2, 1.0]), 3.5, [("rank", 0), ("rank", 1)], True)
    assert second == ([3.0, 20.0], pytest.approx([0.2, 1.0]), 3.5, None, False)


def test_replicas_that_differ_in_one_bit_raise_an_error_that_names_them() -> None:
    for found in two_ranks("differ"):
        assert found == "RunError: the parameters differ from those of worker 0 on 1 worker: [1]"


def test_a_peer_that_is_gone_is_noticed() -> None:
    first, second = two_ranks("leave")
    assert second == "left"
    assert first.startswith(f"{PeerLost.__name__}: worker 0 lost the others")


def test_operations_of_a_single_process_are_the_identity() -> None:
    communicator = Communicator()
    tensor = torch.arange(3.0)
    assert communicator.sum_(tensor) is tensor
    assert communicator.sum_floats([1, 2.5]) == [1, 2.5]
    assert communicator.gather("x") == ["x"]
    assert communicator.from_main(7) == 7


def place(rank: int, world_size: int, num_nodes: int) -> Communicator:
    communicator = Communicator()
    communicator.rank, communicator.world_size, communicator.num_nodes = rank, world_size, num_nodes
    communicator.node_rank = rank // (world_size // num_nodes)
    return communicator


@pytest.mark.parametrize(("world_size", "num_nodes"), [(1, 1), (3, 1), (2, 2), (6, 3), (4, 2)])
def test_shards_hold_every_sample_of_a_minibatch_once_on_the_node_that_has_it(
    world_size: int, num_nodes: int
) -> None:
    n_steps, num_envs = 5, 12
    per_node = num_envs // num_nodes
    minibatch = np.random.default_rng(0).permutation(n_steps * num_envs)[:37]
    found = []
    for rank in range(world_size):
        communicator = place(rank, world_size, num_nodes)
        share = communicator.shard(minibatch, per_node)
        steps, envs = share // per_node, share % per_node
        found += list(steps * num_envs + communicator.node_rank * per_node + envs)
    assert sorted(found) == sorted(minibatch.tolist())


def test_nodes_with_more_processes_have_more_columns_and_every_sample_is_in_one_shard() -> None:
    n_steps, per_process, sizes = 5, 2, (1, 3, 2)
    columns = per_process * sum(sizes)
    minibatch = np.random.default_rng(0).permutation(n_steps * columns)[:37]
    found = []
    for rank, (node, first) in enumerate([(0, 0), (1, 1), (1, 1), (1, 1), (2, 4), (2, 4)]):
        communicator = place(rank, 6, 3)
        communicator.node_sizes, communicator.node_rank = sizes, node
        assert (communicator.local_size, communicator.local_rank) == (sizes[node], rank - first)
        ours = per_process * sizes[node]
        assert communicator.over_all_nodes(n_steps * ours) == n_steps * columns
        share = communicator.shard(minibatch, ours)
        found += list(share // ours * columns + first * per_process + share % ours)
    assert sorted(found) == sorted(minibatch.tolist())


def test_on_one_node_rank_r_of_n_gets_every_nth_sample() -> None:
    minibatch = np.arange(10)[::-1]
    assert place(1, 3, 1).shard(minibatch, 4).tolist() == [8, 5, 2]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.bfloat16])
def test_what_processes_gather_may_contain_tensors(dtype: torch.dtype) -> None:
    tensors = [
        torch.arange(6).to(dtype),
        torch.arange(6).to(dtype).view(2, 3).t(),
        torch.empty(0, dtype=dtype),
    ]
    copy = pickle.loads(pickled({"tensors": tensors, "text": "x"}))
    assert copy["text"] == "x"
    for actual, expected in zip(copy["tensors"], tensors, strict=True):
        assert actual.dtype == dtype and torch.equal(actual, expected)
    copy["tensors"][0].add_(1)
    assert not torch.equal(copy["tensors"][0], tensors[0])  # memory of its own, which may be changed
