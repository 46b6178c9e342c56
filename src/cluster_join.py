"""How ranks meet: at a store that rank 0, or torchrun, keeps. All compare what they are told before they
begin."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from src.cluster import World, host_name, resolve
from src.cluster_network import require_free_port, require_own_address
from src.config import Config, flat_settings
from src.errors import RunError, UsageError
from src.presence import START_SECONDS
from src.record import describe_software

# What may differ from node to node.
LOCAL_SETTINGS = (
    "cluster.network_interface",
    "cluster.master_",
    "hardware.",
    "parallel.buffer_dir",
    "logging.",
)


class MeetingPoint:
    """The store of a run. Rank 0 keeps it unless the launcher does."""

    def __init__(self, world: World, timeout_seconds: float) -> None:
        """Raises UsageError if the port is taken, or if this node is not where the store is to be."""
        self.world = world
        self.patience = max(timeout_seconds, START_SECONDS)
        self.port = world.master_port or 0
        self._server: Any = None
        if world.rank == 0 and not world.hosted:
            require_own_address(world)
            self._server = self._connect(is_master=True)
            self.port = self._server.port

    def _connect(self, is_master: bool = False) -> Any:
        where = f"{self.world.master_addr}:{self.port}"
        try:
            return TCPStore(
                resolve(self.world.master_addr),
                self.port,
                is_master=is_master,
                wait_for_workers=False,
                timeout=timedelta(seconds=self.patience),
            )
        except RuntimeError as error:
            if is_master:  # another program may have taken it just now
                require_free_port(self.world)
            reason = str(error).splitlines()[0]
            raise RunError(
                f"no answer from rank 0 at {where} within {self.patience:g} s ({reason})"
            ) from error

    def connect(self) -> Any:
        """A connection of its own to the store, apart from what earlier starts of the run left there."""
        return PrefixStore(f"rl-cluster-benchmark/{self.world.restarts}", self._connect())


def describe_self(config: Config, resume: bool) -> dict[str, Any]:
    """What has to be equal on all ranks: settings, and versions of what the figures depend on."""
    settings = {
        key: value for key, value in flat_settings(config).items() if not key.startswith(LOCAL_SETTINGS)
    }
    software = describe_software()
    versions = {f"version of {name}": software[name] for name in ("torch", "numpy", "procgen", "gymnasium")}
    return json.loads(json.dumps({**settings, "--resume": resume, **versions}))  # type: ignore[no-any-return]


def meet(
    store: Any, world: World, mine: dict[str, Any], timeout_seconds: float, check: Callable[[], None]
) -> list[str]:
    """Wait for all ranks; returns their names, "rank 1 on host", by rank.

    `mine` is what has to be equal on all ranks; `check` is called while waiting. Raises UsageError if two
    ranks are alike or what they have differs, which ends the others as well, and RunError if some do not
    come.
    """
    rank, patience = world.rank, max(timeout_seconds, START_SECONDS)
    own = f"{host_name()} (process {os.getpid()})"
    if rank == 0:
        store.set("settings", json.dumps(mine))
    if store.add(f"here/{rank}", 1) > 1:
        refuse(
            store, f"two processes are rank {rank}: one on {store.get(f'who/{rank}').decode()}, one on {own}"
        )
    store.set(f"beat/{rank}", "0")
    store.set(f"left/{rank}", "")
    store.set(f"who/{rank}", own)
    deadline = time.monotonic() + patience
    _wait_for(store, ["settings"], deadline, check)
    first = json.loads(store.get("settings"))
    different = [
        f"{key} = {mine.get(key)!r} on rank {rank} ({host_name()}), {first.get(key)!r} on rank 0"
        for key in sorted({*mine, *first})
        if mine.get(key) != first.get(key)
    ]
    if different:
        refuse(store, f"all ranks need the same settings: {'; '.join(different)}")
    missing = _wait_for(store, [f"who/{each}" for each in range(world.size)], deadline, check)
    if missing:
        ranks = ", ".join(key.removeprefix("who/") for key in missing[:8])
        more = ", ..." if len(missing) > 8 else ""
        raise RunError(f"rank(s) {ranks}{more} of {world.size} did not come within {patience:g} s")
    names = store.multi_get([f"who/{each}" for each in range(world.size)])
    return [f"rank {each} on {name.decode().split(' (')[0]}" for each, name in enumerate(names)]


def refuse(store: Any, text: str) -> None:
    """End this rank and all others that come with a UsageError."""
    store.set("refused", text)
    raise UsageError(text)


def _wait_for(store: Any, keys: list[str], deadline: float, check: Callable[[], None]) -> list[str]:
    """Wait until all keys are there; returns those that are not when the time is over."""
    while not store.check(keys):
        if store.check(["refused"]):
            raise UsageError(store.get("refused").decode())
        if time.monotonic() > deadline:
            return [key for key in keys if not store.check([key])]
        check()
        time.sleep(0.1)
    if store.check(["refused"]):
        raise UsageError(store.get("refused").decode())
    return []
