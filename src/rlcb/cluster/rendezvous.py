"""Rendezvous: the ranks of a distributed run meet at a torch.distributed store and compare their settings.

Rank 0 keeps the store, a TCPStore, unless torchrun keeps one. Every process reaches it through a prefix, so
that a restarted run does not read what an earlier start left. These keys go through it; `launches` are under
the prefix of the run, all others under the prefix of its current start:

    key                   written by               read by     value
    launches/PURPOSE/...  all members              all members keys of `agree_on_start_name`, below
    settings              rank 0                   all ranks   its settings and versions, JSON
    workers/NODE          ranks of a node         all ranks   number of ranks of the node (node_sizes.py)
    claimed/RANK          rank RANK                itself      how many processes claim to be this rank
    name/RANK             rank RANK                all ranks   "host (process N)"
    ready/RANK            rank RANK                all ranks   set once its settings agree with rank 0's
    refused               any rank                 all ranks   why the run does not start, JSON (kind, text)
    refused/heard         all ranks                rank 0      how many processes have read `refused`
    split                 node 0                   all nodes   numbers of actors and learners, JSON
    split/heard           all other nodes          node 0      how many nodes have read `split`
    memory/NODE           first rank of a node     its others  path of the socket that passes shared memory
    sums/NODE             first rank of a node     its others  the same, for the memory of sums
    gloo/...              torch.distributed        all ranks   addresses of gloo's connections
    beat/RANK             rank RANK (watchdog)     rank 0; all read that of rank 0: a heartbeat counter
    left/RANK             rank RANK (watchdog)     all ranks   why this rank ends early, JSON; "" until then
    leaving               all ranks (watchdog)     all ranks   how many ranks end early
    reason                rank 0 (watchdog)        all ranks   the shutdown reason that all ranks raise, JSON
    informed              all ranks (watchdog)     rank 0      how many ranks have read the shutdown reason

`agree_on_start_name` uses `word/MEMBER` (a random word of each member, read by member 0), `proposal` (member
0: a name and the words that it saw, JSON), `agreed/NAME` (how many members accept it) and `start` (member 0:
the name that all have accepted).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from rlcb.cluster.launch import resolve
from rlcb.cluster.network import raise_file_limit, require_free_port, require_own_address, too_few_files
from rlcb.config.config import Config, flat_settings
from rlcb.errors import PeerLost, RunError, UsageError, first_line
from rlcb.parallel.heartbeat import START_SECONDS
from rlcb.parallel.world import World, host_name
from rlcb.software import describe_software

PREFIX = "rl-cluster-benchmark"
POLL_SECONDS = 0.1
REFUSAL_SECONDS = 15.0  # how long a process that refuses to start waits for its peers to read why

# Settings that begin like this may differ between nodes. The intervals of snapshots and checkpoints may not,
# because all ranks take part in them.
NODE_SETTINGS = (
    "cluster.network_interface",
    "cluster.master_",
    "hardware.",
    "parallel.buffer_dir",
    "logging.checkpoint_dir",
    "logging.log_",
    "logging.tensorboard",
    "logging.memory_interval_seconds",
    "logging.keep_checkpoints",
)


class MeetingPoint:
    """One process's access to the store of a run. Rank 0 also keeps the store, unless its launcher does."""

    def __init__(self, world: World, timeout_seconds: float) -> None:
        """Open the store on rank 0. Raises UsageError if the port or the address of rank 0 cannot be used."""
        self.world = world
        self.patience = max(timeout_seconds, START_SECONDS)
        self.start = str(world.restarts)
        """Distinguishes this start of the run from earlier ones in the same store."""
        self.port = world.master_port or 0
        self._server: Any = None
        raise_file_limit(world)
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
            if is_master:  # another program may have taken the port just now
                require_free_port(self.world)
            reason = first_line(error)
            raise RunError(
                f"no answer from rank 0 at {where} within {self.patience:g} s ({reason})"
            ) from error

    def connect(self) -> Any:
        """Return a new connection to the store, restricted to keys of this start of the run."""
        return PrefixStore(f"{PREFIX}/{self.start}", self._connect())

    def agree_on_start(self, purpose: str, member: int, members: int, check: Callable[[], None]) -> None:
        """Agree with all `members` that meet for `purpose` on a name for this start of the run.

        Only needed when torchrun keeps the store: such a store survives restarts, and a torchrun agent that
        restarts its processes because another node's failed does not count the restart. `check` is called
        while waiting and may raise. Raises RunError if some members do not come.
        """
        if self.world.hosted and members > 1:
            store = PrefixStore(f"{PREFIX}/launches/{purpose}", self._connect())
            self.start = agree_on_start_name(store, member, members, self.patience, check)


def agree_on_start_name(
    store: Any, member: int, members: int, patience: float, check: Callable[[], None]
) -> str:
    """Return a name that all `members` of this start agree on and that no earlier start used.

    The store may hold what earlier starts of the same members left. So every member writes a random word.
    Member 0 proposes a name together with the words that it sees, and a new name whenever a word changes. The
    other members accept a proposal that holds their own word. Raises RunError after `patience` seconds.
    """
    own_word = uuid.uuid4().hex
    keys = [f"word/{each}" for each in range(members)]
    store.set(keys[member], own_word)
    name, words, deadline = "", [own_word], time.monotonic() + patience
    while True:
        if member == 0 and store.check(keys):
            seen = [each.decode() for each in store.multi_get(keys)]
            if seen != words:
                name, words = uuid.uuid4().hex, seen
                store.set("proposal", json.dumps((name, words)))
            if store.add(f"agreed/{name}", 0) == members - 1:
                store.set("start", name)
                return name
        elif member > 0 and store.check(["proposal"]):
            proposed, words = json.loads(store.get("proposal"))
            if words[member] == own_word and proposed != name:
                name = proposed
                store.add(f"agreed/{name}", 1)
            if name and store.check(["start"]) and store.get("start").decode() == name:
                return name
        if time.monotonic() > deadline:
            raise RunError(f"not all of {members} processes came within {patience:g} s")
        check()
        time.sleep(POLL_SECONDS)


def shared_settings(config: Config, resume: bool) -> dict[str, Any]:
    """Return what must be equal on all ranks: settings, and versions of packages that affect the metrics."""
    settings = {
        key: value for key, value in flat_settings(config).items() if not key.startswith(NODE_SETTINGS)
    }
    software = describe_software()
    versions = {f"version of {name}": software[name] for name in ("torch", "numpy", "procgen", "gymnasium")}
    return json.loads(json.dumps({**settings, "--resume": resume, **versions}))  # type: ignore[no-any-return]


def join_world(
    store: Any, world: World, settings: dict[str, Any], timeout_seconds: float, check: Callable[[], None]
) -> list[str]:
    """Announce this rank and wait for all others; return the names of all ranks, "rank 1 on host".

    `settings` must be equal on all ranks. `check` is called while waiting and may raise. Raises UsageError,
    on this rank and all others, if two processes claim the same rank, if settings differ, or if this process
    may not open enough files. Raises RunError if some ranks do not come.
    """
    rank, patience = world.rank, max(timeout_seconds, START_SECONDS)
    too_few = too_few_files(world)
    if too_few is not None:
        refuse(store, too_few, peers=world.size - 1 if rank == 0 else 0)
    name = f"{host_name()} (process {os.getpid()})"
    if rank == 0:
        store.set("settings", json.dumps(settings))
    if store.add(f"claimed/{rank}", 1) > 1:
        other = store.get(f"name/{rank}").decode()
        refuse(store, f"two processes are rank {rank}: one on {other}, one on {name}")
    store.set(f"beat/{rank}", "0")
    store.set(f"left/{rank}", "")
    store.set(f"name/{rank}", name)
    deadline = time.monotonic() + patience
    _wait_for(store, ["settings"], deadline, check)
    expected = json.loads(store.get("settings"))
    different = [
        f"{key} = {settings.get(key)!r} on rank {rank} ({host_name()}), {expected.get(key)!r} on rank 0"
        for key in sorted({*settings, *expected})
        if settings.get(key) != expected.get(key)
    ]
    if different:
        refuse(store, f"all ranks need the same settings: {'; '.join(different)}")
    store.set(f"ready/{rank}", "1")
    missing = _wait_for(store, [f"ready/{each}" for each in range(world.size)], deadline, check)
    if missing:
        ranks = ", ".join(key.removeprefix("ready/") for key in missing[:8])
        more = ", ..." if len(missing) > 8 else ""
        noun = "rank" if len(missing) == 1 else "ranks"
        raise RunError(f"{noun} {ranks}{more} of {world.size} did not come within {patience:g} s")
    names = store.multi_get([f"name/{each}" for each in range(world.size)])
    return [f"rank {each} on {name.decode().split(' (')[0]}" for each, name in enumerate(names)]


def refuse(store: Any, text: str, peers: int = 0) -> NoReturn:
    """Raise UsageError with `text` in this process and in all that wait at the store.

    First wait until `peers` processes have read the text, but at most REFUSAL_SECONDS.
    """
    post_refusal(store, "usage", text)
    deadline = time.monotonic() + REFUSAL_SECONDS
    while store.add("refused/heard", 0) < peers and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    raise UsageError(text)


def post_refusal(store: Any, kind: str, text: str) -> None:
    """Make all ranks that wait at the store raise UsageError if `kind` is "usage", else PeerLost."""
    store.set("refused", json.dumps((kind, text)))


def raise_refusal(store: Any) -> None:
    """Raise the refusal that another process has posted, if there is one."""
    if store.check(["refused"]):
        kind, text = json.loads(store.get("refused"))
        store.add("refused/heard", 1)
        raise (UsageError if kind == "usage" else PeerLost)(text)


def refuse_peers(world: World, purpose: str, timeout_seconds: float, text: str) -> None:
    """Raise UsageError with `text` in all processes that wait to meet rank 0 for `purpose`.

    Called on rank 0, which does not start. Returns when all have read the text, at the latest after
    REFUSAL_SECONDS. The caller then raises its own error.
    """
    deadline = time.monotonic() + REFUSAL_SECONDS
    not_started = 1 if world.local_rank is not None else world.num_workers  # ranks of this process

    def check() -> None:
        if time.monotonic() > deadline:
            raise RunError("some processes did not come")

    with contextlib.suppress(UsageError, RunError, RuntimeError):
        point = MeetingPoint(world, timeout_seconds)
        point.agree_on_start(purpose, world.rank, world.size, check)
        refuse(point.connect(), text, world.size - not_started)


def _wait_for(store: Any, keys: list[str], deadline: float, check: Callable[[], None]) -> list[str]:
    """Wait until all keys are in the store; return those that are still missing at the deadline."""
    while not store.check(keys):
        raise_refusal(store)
        if time.monotonic() > deadline:
            return [key for key in keys if not store.check([key])]
        check()
        time.sleep(POLL_SECONDS)
    raise_refusal(store)
    return []
