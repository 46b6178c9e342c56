"""How ranks meet: at a store that rank 0, or torchrun, keeps. All compare what they are told before they
begin."""

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

TELL_SECONDS = 15.0  # for others to come and hear why rank 0 does not

# What may differ from node to node. When states are taken, which all ranks do together, may not.
LOCAL_SETTINGS = (
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
    """The store of a run. Rank 0 keeps it unless the launcher does."""

    def __init__(self, world: World, timeout_seconds: float) -> None:
        """Raises UsageError if the port is taken, or if this node is not where the store is to be."""
        self.world = world
        self.patience = max(timeout_seconds, START_SECONDS)
        self.start = str(world.restarts)
        """What sets this start of the run apart from earlier ones."""
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
            if is_master:  # another program may have taken it just now
                require_free_port(self.world)
            reason = first_line(error)
            raise RunError(
                f"no answer from rank 0 at {where} within {self.patience:g} s ({reason})"
            ) from error

    def connect(self) -> Any:
        """A connection of its own to the store, apart from what earlier starts of the run left there."""
        return PrefixStore(f"rl-cluster-benchmark/{self.start}", self._connect())

    def agree_on_start(self, purpose: str, member: int, members: int, check: Callable[[], None]) -> None:
        """Have all that meet here for one purpose take the same start of the run for theirs.

        A store that the launcher keeps outlives the processes, and an agent of torchrun that starts its own
        anew because those of another node have failed does not count that as a restart. `check` is called
        while waiting. Raises RunError if some do not come.
        """
        if self.world.hosted and members > 1:
            store = PrefixStore(f"rl-cluster-benchmark/{purpose}", self._connect())
            self.start = name_start(store, member, members, self.patience, check)


def name_start(store: Any, member: int, members: int, patience: float, check: Callable[[], None]) -> str:
    """A name on which all `members` agree, although the store may hold what earlier ones of the same numbers
    left there.

    Each leaves a word that no other start had. Member 0 proposes a name for the words that it sees, anew
    whenever one has changed, until all others have agreed, who look for their own word in the proposal.
    """
    own = uuid.uuid4().hex
    keys = [f"word/{each}" for each in range(members)]
    store.set(keys[member], own)
    name, words, deadline = "", [own], time.monotonic() + patience
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
            if words[member] == own and proposed != name:
                name = proposed
                store.add(f"agreed/{name}", 1)
            if name and store.check(["start"]) and store.get("start").decode() == name:
                return name
        if time.monotonic() > deadline:
            raise RunError(f"not all of {members} processes came within {patience:g} s")
        check()
        time.sleep(0.1)


def describe_self(config: Config, resume: bool) -> dict[str, Any]:
    """What has to be equal on all ranks: settings, and versions of what the metrics depend on."""
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
    ranks are alike, what they have differs or one may not have enough files open, which ends the others as
    well, and RunError if some do not come.
    """
    rank, patience = world.rank, max(timeout_seconds, START_SECONDS)
    too_few = too_few_files(world)
    if too_few is not None:
        refuse(store, too_few, others=world.size - 1 if rank == 0 else 0)
    own = f"{host_name()} (process {os.getpid()})"
    if rank == 0:
        store.set("settings", json.dumps(mine))
    if store.add(f"here/{rank}", 1) > 1:
        refuse(
            store, f"two processes are rank {rank}: one on {store.get(f'name/{rank}').decode()}, one on {own}"
        )
    store.set(f"beat/{rank}", "0")
    store.set(f"left/{rank}", "")
    store.set(f"name/{rank}", own)
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
    store.set(f"who/{rank}", own)  # nobody begins before all are known to fit
    missing = _wait_for(store, [f"who/{each}" for each in range(world.size)], deadline, check)
    if missing:
        ranks = ", ".join(key.removeprefix("who/") for key in missing[:8])
        more = ", ..." if len(missing) > 8 else ""
        noun = "rank" if len(missing) == 1 else "ranks"
        raise RunError(f"{noun} {ranks}{more} of {world.size} did not come within {patience:g} s")
    names = store.multi_get([f"who/{each}" for each in range(world.size)])
    return [f"rank {each} on {name.decode().split(' (')[0]}" for each, name in enumerate(names)]


def refuse(store: Any, text: str, others: int = 0) -> NoReturn:
    """End this rank and all others that come with a UsageError; before it, wait until `others` of them have
    heard it, or have had time enough to come."""
    turn_away(store, "usage", text)
    deadline = time.monotonic() + TELL_SECONDS
    while store.add("refused/heard", 0) < others and time.monotonic() < deadline:
        time.sleep(0.1)
    raise UsageError(text)


def turn_away(store: Any, kind: str, text: str) -> None:
    """End all ranks that come: with a UsageError if `kind` is usage, else as those who lost another."""
    store.set("refused", json.dumps((kind, text)))


def require_welcome(store: Any) -> None:
    """Raise what those who come are turned away with, if they are."""
    if store.check(["refused"]):
        kind, text = json.loads(store.get("refused"))
        store.add("refused/heard", 1)
        raise (UsageError if kind == "usage" else PeerLost)(text)


def refuse_all(world: World, purpose: str, timeout_seconds: float, text: str) -> None:
    """On rank 0, which does not come: end with a UsageError all who wait for it to meet for a purpose.

    Returns when they have heard it, or have had time enough to come.
    """
    deadline = time.monotonic() + TELL_SECONDS
    own_ranks = 1 if world.local_rank is not None else world.num_workers  # which have not been started

    def check() -> None:
        if time.monotonic() > deadline:
            raise RunError("some did not come to hear it")

    with contextlib.suppress(UsageError, RunError, RuntimeError):  # who calls this says why rank 0 ends
        point = MeetingPoint(world, timeout_seconds)
        point.agree_on_start(purpose, world.rank, world.size, check)
        refuse(point.connect(), text, world.size - own_ranks)


def _wait_for(store: Any, keys: list[str], deadline: float, check: Callable[[], None]) -> list[str]:
    """Wait until all keys are there; returns those that are not when the time is over."""
    while not store.check(keys):
        require_welcome(store)
        if time.monotonic() > deadline:
            return [key for key in keys if not store.check([key])]
        check()
        time.sleep(0.1)
    require_welcome(store)
    return []
