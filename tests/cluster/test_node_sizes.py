"""Nodes tell each other how many ranks they have."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlcb.cluster import node_sizes
from rlcb.cluster.node_sizes import complete_world
from rlcb.errors import Interrupted, RunError, UsageError
from rlcb.parallel import messages
from rlcb.parallel.world import World
from tests import cluster_runs, runs
from tests.cluster_runs import PPO, TINY, Nodes, free_port

pytestmark = pytest.mark.timeout(120)


def nothing() -> None: ...


def by_hand(workers: tuple[int, ...], port: int) -> list[World]:
    """The world of the process that starts each node, before the nodes have met."""
    count = len(workers)
    return [
        World("hand", count, node, workers[node], None, "127.0.0.1", port, complete=False)
        for node in range(count)
    ]


def meet(worlds: list[World], check: Callable[[], None] = nothing) -> list[Any]:
    """What each process gets, or the error that it raises."""

    def call(world: World) -> Any:
        try:
            return complete_world(world, 30.0, check)
        except (UsageError, RunError) as error:
            return error

    with ThreadPoolExecutor(len(worlds)) as pool:
        return [future.result() for future in [pool.submit(call, world) for world in worlds]]


def test_every_node_learns_the_numbers_of_all() -> None:
    found = meet(by_hand((1, 3, 2), free_port()))
    assert [world.sizes for world in found] == [(1, 3, 2)] * 3
    assert [(world.first_rank, world.size, world.complete) for world in found] == [
        *((0, 6, True), (1, 6, True), (4, 6, True)),
    ]
    assert complete_world(found[0], 30.0, nothing) is found[0]


def test_the_first_node_may_come_last_and_the_port_is_free_afterwards() -> None:
    port = free_port()
    first, second = by_hand((2, 1), port)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(complete_world, second, 30.0, nothing)
        time.sleep(0.3)
        assert complete_world(first, 30.0, nothing).sizes == (2, 1)
        assert other.result().sizes == (2, 1)
    TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)


def test_other_programs_that_connect_do_no_harm() -> None:
    port = free_port()
    first, second = by_hand((2, 1), port)
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as strangers:
        other = pool.submit(complete_world, first, 30.0, nothing)
        other_message = messages._HEAD.pack(messages.MAGIC, 8, 0) + b'{"a": 1}'
        for content in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", other_message, b""):
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    peer = strangers.enter_context(socket.create_connection(("127.0.0.1", port), 5))
                    break
            peer.sendall(content)
            peer.shutdown(socket.SHUT_WR)
        assert complete_world(second, 30.0, nothing).sizes == (2, 1)
        assert other.result().sizes == (2, 1)


def test_two_processes_of_one_node_are_refused_on_all() -> None:
    first, second, third = by_hand((2, 1, 1), free_port())
    for error in meet([first, second, replace(third, node_rank=1)]):
        assert isinstance(error, UsageError)
        assert str(error).startswith("two processes are node 1: one on ")


def test_nodes_that_count_differently_are_refused() -> None:
    first, second = by_hand((2, 1), free_port())
    for error in meet([first, replace(second, num_nodes=3)]):
        assert isinstance(error, UsageError)
        assert str(error).startswith("cluster.num_nodes = 3 on ")
        assert "contradicts 2 on node 0" in str(error)


def test_nodes_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sizes, "START_SECONDS", 0.3)
    first, _, third = by_hand((1, 1, 1), free_port())
    for world, text in (
        (first, "process 1, process 2 did not come within"),
        (third, "no answer from node 0"),
    ):
        with pytest.raises(RunError, match=text):
            complete_world(world, 0.1, nothing)


def test_a_signal_ends_the_wait() -> None:
    def stop() -> None:
        raise Interrupted(15)

    for world in by_hand((1, 1), free_port()):
        with pytest.raises(Interrupted):
            complete_world(world, 30.0, stop)


def test_ranks_of_torchrun_use_the_store_that_it_keeps() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"master_addr": "127.0.0.1", "master_port": server.port, "hosted": True, "complete": False}
    sizes = (1, 3, 2)
    ranks = []
    for node, workers in enumerate(sizes):
        before = sum(sizes[:node])
        known = [0, 0, 0]
        known[0], known[2] = before, sum(sizes) - before - workers
        known[node] = workers
        ranks += [
            World("torchrun", 3, node, workers, local, node_sizes=tuple(known), **place)  # type: ignore[arg-type]
            for local in range(workers)
        ]
    found = meet(ranks)
    assert [(world.rank, world.sizes) for world in found] == [(rank, sizes) for rank in range(6)]


def test_started_by_hand_with_different_numbers_of_workers_nodes_train_and_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for total, resume in ((128, ()), (256, ("--resume", "auto"))):
        with Nodes(cluster_runs.own_address()) as nodes:
            flags = (*TINY, "--num-envs", 6, "--batch-size", 24, *resume, "--output-dir", folder)
            for node, workers in enumerate((1, 2)):
                words = (*flags, *nodes.place, "--node-rank", node, "--num-workers", workers)
                words = (*words, "--total-timesteps", 48 * total // 64)
                nodes.processes.append(cluster_runs.start(runs.command(PPO, *words), TEST_RANK=node))
            (code, output, errors), (other_code, other_output, other_errors) = nodes.wait(90)
        assert (code, other_code) == (0, 0), errors + other_errors
        assert "6 in groups of 1, 2 for each of 3 workers on 2 nodes (1 + 2)" in output
        assert "starts ranks 1 to 2 of 3" in other_output
    record = runs.record(folder)
    assert record["total_timesteps"] == 192
    cluster = record["config"]["cluster"]
    assert (cluster["num_nodes"], cluster["num_workers"], cluster["node_workers"]) == (2, None, [1, 2])
    assert [worker["name"].split(" on ")[0] for worker in record["workers"]] == ["rank 0", "rank 1", "rank 2"]
    cluster_runs.assert_nothing_left(folder)
