"""How many ranks each node of a run has, where the launcher does not say it: the nodes tell each other.

It happens before any rank starts, because the configuration contains the numbers. The ranks of torchrun use
the store that torchrun keeps. All others meet at the port of rank 0, which rank 0 opens again for the store
of the run afterwards: member 0 listens; every other member sends one message (parallel/messages.py) with its
place, and gets one with the numbers of all nodes, or with the reason why the run does not start. A member is
a rank, or a process that starts the ranks of its node. Nothing but the store of torchrun needs torch.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlcb.cluster.launch import resolve
from rlcb.errors import RunError, UsageError
from rlcb.parallel.heartbeat import START_SECONDS
from rlcb.parallel.messages import CONNECT_SECONDS, ConnectionLost, MessageStream
from rlcb.parallel.world import World, host_name

POLL_SECONDS = 0.1
PLACE_SECONDS = 5.0  # for a process that has connected to tell its place


def complete_world(world: World, timeout_seconds: float, check: Callable[[], None]) -> World:
    """Return `world` with the number of ranks of every node. Every process that a launcher started calls it.

    `check` is called while waiting and may raise. Raises UsageError if two processes claim one place or a
    node contradicts its launcher, and RunError if processes do not come within max(timeout_seconds,
    START_SECONDS).
    """
    if world.complete:
        return world
    patience = max(timeout_seconds, START_SECONDS)
    if world.hosted:
        sizes = _through_store(world, timeout_seconds, patience, check)
    elif _member(world) == 0:
        sizes = _collect(world, patience, check)
    else:
        sizes = _report(world, patience, check)
    return _with_sizes(world, sizes)


def _member(world: World) -> int:
    return world.node_rank if world.local_rank is None else world.rank


def _with_sizes(world: World, sizes: list[int]) -> World:
    """Return the complete world. Raises UsageError if it gives this rank another number than its launcher."""
    found = replace(world, node_sizes=tuple(sizes), complete=True)
    if world.local_rank is not None and found.rank != world.rank:
        raise UsageError(
            f"RANK = {world.rank} contradicts LOCAL_RANK = {world.local_rank} on node {world.node_rank} of "
            f"nodes with {', '.join(map(str, sizes))} ranks"
        )
    return found


def _through_store(
    world: World, timeout_seconds: float, patience: float, check: Callable[[], None]
) -> list[int]:
    """Exchange the numbers through the store that the launcher keeps."""
    from rlcb.cluster.rendezvous import MeetingPoint

    point = MeetingPoint(world, timeout_seconds)
    point.agree_on_start("sizes", world.rank, world.size, check)
    store = point.connect()
    store.set(f"workers/{world.node_rank}", str(world.num_workers))
    keys = [f"workers/{node}" for node in range(world.num_nodes)]
    deadline = time.monotonic() + patience
    while not store.check(keys):
        _require_time(deadline, patience, [key for key in keys if not store.check([key])])
        check()
        time.sleep(POLL_SECONDS)
    return [int(value) for value in store.multi_get(keys)]


def _require_time(deadline: float, patience: float, missing: list[str]) -> None:
    if time.monotonic() > deadline:
        raise RunError(f"{', '.join(missing)} did not come within {patience:g} s")


def _collect(world: World, patience: float, check: Callable[[], None]) -> list[int]:
    """Listen as member 0 until all members have told their place; answer all of them. Returns the numbers."""
    family = socket.AF_INET6 if ":" in resolve(world.master_addr) else socket.AF_INET
    count = world.num_nodes if world.local_rank is None else world.size
    told = {0: _place(world)}
    deadline = time.monotonic() + patience
    with contextlib.ExitStack() as peers:
        connected: list[MessageStream] = []
        with socket.create_server(("", world.master_port or 0), family=family, backlog=count) as server:
            server.settimeout(POLL_SECONDS)
            problem = None
            while len(told) < count and problem is None:
                missing = [f"process {each}" for each in range(count) if each not in told]
                _require_time(deadline, patience, missing)
                check()
                with contextlib.suppress(TimeoutError, ConnectionLost):  # nobody came, or another program
                    stream = MessageStream(server.accept()[0])
                    peers.callback(stream.close)
                    stream.socket.settimeout(PLACE_SECONDS)
                    place = _receive(stream, "member", PLACE_SECONDS, check)
                    connected.append(stream)
                    problem = _add(told, place, count)
        # The port is closed now: the store of the run may open it as soon as others know the numbers.
        by_node = {place["node"]: place["workers"] for place in told.values()}
        sizes = [by_node.get(node, 0) for node in range(world.num_nodes)]
        for stream in connected:
            with contextlib.suppress(ConnectionLost):  # it has ended, which the ranks of the run notice
                stream.send({"refused": problem, "sizes": sizes})
    if problem is not None:
        raise UsageError(problem)
    return sizes


def _place(world: World) -> dict[str, Any]:
    """Return what a process tells member 0."""
    return {
        "member": _member(world),
        "node": world.node_rank,
        "nodes": world.num_nodes,
        "workers": world.num_workers,
        "host": host_name(),
    }


def _add(told: dict[int, dict[str, Any]], place: dict[str, Any], count: int) -> str | None:
    """Add the place of a process to those that are known; return why it is impossible, or None."""
    member, first = place["member"], told[0]
    if place["nodes"] != first["nodes"]:
        return (
            f"cluster.num_nodes = {place['nodes']} on {place['host']} contradicts {first['nodes']} on node 0 "
            f"({first['host']})"
        )
    if member in told or not 0 < member < count:
        other = told.get(member, first)["host"]
        return f"two processes are node {place['node']}: one on {other}, one on {place['host']}"
    told[member] = place
    return None


def _report(world: World, patience: float, check: Callable[[], None]) -> list[int]:
    """Tell member 0 this process's place, and return the numbers that it answers."""
    address = resolve(world.master_addr), world.master_port or 0
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ConnectionLost):
            stream = MessageStream(socket.create_connection(address, CONNECT_SECONDS))
            with contextlib.closing(stream):
                stream.send(_place(world))
                answer = _receive(stream, "refused", deadline - time.monotonic(), check)
            if answer["refused"] is not None:
                raise UsageError(answer["refused"])
            return [int(size) for size in answer["sizes"]]
        check()
        time.sleep(POLL_SECONDS)
    where = f"{world.master_addr}:{world.master_port}"
    raise RunError(f"no answer from node 0 at {where} within {patience:g} s")


def _receive(stream: MessageStream, key: str, seconds: float, check: Callable[[], None]) -> dict[str, Any]:
    """Return the message that a process sends within `seconds`; `check` is called while waiting. Raises
    ConnectionLost if it closes, is silent, or sends something without `key`."""
    deadline = time.monotonic() + seconds
    while not stream.readable(POLL_SECONDS) and time.monotonic() < deadline:
        check()
    message = stream.receive(0.0)
    if key not in message:
        raise ConnectionLost(f"expected {key}")
    return message
