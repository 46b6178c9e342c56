"""Shared memory between ranks of a node that the launcher started separately.

The node's first rank opens the memory and passes its file descriptor to the others through a local socket.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlcb.cluster.watchdog import Watchdog
from rlcb.errors import RunError
from rlcb.parallel.world import World
from rlcb.processes.shared_memory import map_shared
from rlcb.processes.socket_folder import short_parent

POLL_SECONDS = 0.2


def share_memory(store: Any, world: World, purpose: str, opened: Callable[[], int], watch: Watchdog) -> Any:
    """Return memory that all ranks of this node share. Every rank of the run calls it.

    The node's first rank opens it with `opened`, which returns its descriptor. Raises UsageError if the node
    has not enough memory, and the shutdown reason if a rank fails.
    """
    key = f"{purpose}/{world.node_rank}"
    if world.local_rank == 0:
        descriptor = opened()
        if world.num_workers > 1:
            _hand_out(store, key, descriptor, world.num_workers - 1, watch)
    else:
        with watch.waiting():
            while not store.check([key]):
                watch.check()
                time.sleep(POLL_SECONDS / 4)
            descriptor = _fetch(store.get(key).decode())
    return map_shared(descriptor)


def _hand_out(store: Any, key: str, descriptor: int, count: int, watch: Watchdog) -> None:
    """Serve `descriptor` to `count` ranks of this node; `key` of the store tells them the socket's path."""
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
        while count:
            try:
                peer, _ = server.accept()
            except TimeoutError:
                watch.check()
                continue
            with contextlib.closing(peer):
                socket.send_fds(peer, [b"memory"], [descriptor])
            count -= 1


def _fetch(path: str) -> int:
    """Return the file descriptor that the node's first rank serves at `path`. Raises RunError."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as peer:
        try:
            peer.connect(path)
            _, descriptors, _, _ = socket.recv_fds(peer, 16, 1)
            return descriptors[0]
        except (OSError, IndexError) as error:
            raise RunError(f"cannot get the node's shared memory at {path}: {error}") from error
