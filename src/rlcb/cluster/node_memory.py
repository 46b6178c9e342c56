"""Shared memory between ranks of a node that the launcher started separately.

The node's first rank opens the memory and passes its file descriptor to the others through a local socket.
"""

from __future__ import annotations

import contextlib
import select
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlcb.cluster.watchdog import Watchdog
from rlcb.errors import RunError
from rlcb.parallel.world import World
from rlcb.processes.shared_memory import map_shared
from rlcb.processes.socket_folder import short_parent

POLL_SECONDS = 0.2


class NodePeers:
    """Connections between a node's first rank and its others, which close when a rank ends."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._connections = connections
        self._poll = select.poll()
        for each in connections:
            self._poll.register(each, select.POLLIN)  # nothing is sent, so only the end can be read

    def check(self) -> None:
        """Raise RuntimeError, as gloo does, if a rank at the other end of a connection has ended."""
        if self._poll.poll(0):
            raise RuntimeError("Connection closed by another rank of this node")

    def close(self) -> None:
        """Close the connections."""
        for each in self._connections:
            each.close()


def share_memory(
    store: Any, world: World, purpose: str, opened: Callable[[], int], watch: Watchdog
) -> tuple[Any, NodePeers]:
    """Return memory that all ranks of this node share, and the connections between them. Every rank of the
    run calls it.

    The node's first rank opens it with `opened`, which returns its descriptor. Raises UsageError if the node
    has not enough memory, and the shutdown reason if a rank fails.
    """
    key = f"{purpose}/{world.node_rank}"
    connections: list[socket.socket] = []
    if world.local_rank == 0:
        descriptor = opened()
        if world.num_workers > 1:
            connections = _hand_out(store, key, descriptor, world.num_workers - 1, watch)
    else:
        with watch.waiting():
            while not store.check([key]):
                watch.check()
                time.sleep(POLL_SECONDS / 4)
            descriptor, connection = _fetch(store.get(key).decode())
            connections = [connection]
    return map_shared(descriptor), NodePeers(connections)


def _hand_out(store: Any, key: str, descriptor: int, count: int, watch: Watchdog) -> list[socket.socket]:
    """Serve `descriptor` to `count` ranks of this node; `key` of the store tells them the socket's path.
    Return the connections to them."""
    peers: list[socket.socket] = []
    with (
        tempfile.TemporaryDirectory(dir=short_parent()) as folder,  # readable only for this user
        contextlib.closing(socket.socket(socket.AF_UNIX)) as server,
        watch.waiting(),
    ):
        path = str(Path(folder) / "memory")
        server.bind(path)
        server.listen(count)
        server.settimeout(POLL_SECONDS)
        store.set(key, path)
        while len(peers) < count:
            try:
                peer, _ = server.accept()
            except TimeoutError:
                watch.check()
                continue
            peers.append(peer)
            socket.send_fds(peer, [b"memory"], [descriptor])
    return peers


def _fetch(path: str) -> tuple[int, socket.socket]:
    """Return the file descriptor that the node's first rank serves at `path`, and the connection to that
    rank. Raises RunError."""
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.connect(path)
        _, descriptors, _, _ = socket.recv_fds(peer, 16, 1)
        return descriptors[0], peer
    except (OSError, IndexError) as error:
        peer.close()
        raise RunError(f"cannot get the node's shared memory at {path}: {error}") from error
