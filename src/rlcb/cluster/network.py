"""Checks before ranks connect: the network interface, the address and port of rank 0, open files."""

from __future__ import annotations

import contextlib
import os
import resource
import socket

import psutil

from rlcb.cluster.launch import is_loopback, resolve
from rlcb.errors import UsageError
from rlcb.parallel.world import World, host_name

VARIABLE = "GLOO_SOCKET_IFNAME"
OTHER_FILES = 200  # open files of a process besides connections: libraries, metrics, pipes, environments


def addresses() -> dict[str, list[str]]:
    """Return the IPv4 and IPv6 addresses of this host by interface name."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [each.address.split("%")[0] for each in found if each.family in families]
        for name, found in psutil.net_if_addrs().items()
    }


def use_interface(world: World, wanted: str | None) -> str:
    """Choose the network interface that gloo uses, set GLOO_SOCKET_IFNAME, and return the name.

    The choice is `wanted`, else GLOO_SOCKET_IFNAME, else the interface that reaches the master. Raises
    UsageError if the first two differ or this host has no such interface.
    """
    set_outside = os.environ.get(VARIABLE) or None
    if wanted is not None and set_outside is not None and wanted != set_outside:
        raise UsageError(f"cluster.network_interface = {wanted} contradicts {VARIABLE} = {set_outside}")
    known = addresses()
    chosen = wanted or set_outside or _towards_master(world, known)
    for name in chosen.split(","):  # gloo takes several
        if not known.get(name):
            there = ", ".join(f"{name} ({found[0]})" for name, found in known.items() if found)
            source = "cluster.network_interface" if wanted else VARIABLE
            raise UsageError(
                f"{source} = {name}: {host_name()} has no such interface with an address; it has {there}"
            )
    os.environ[VARIABLE] = chosen
    return chosen


def _towards_master(world: World, known: dict[str, list[str]]) -> str:
    """Return the interface whose address reaches the master, or the only one besides loopback.

    Raises UsageError.
    """
    master = resolve(world.master_addr)
    source = _source_address(master)
    if world.num_nodes == 1 or not is_loopback(source):
        for name, found in known.items():
            if source in found:
                return name
    outside = [name for name, found in known.items() if found and not is_loopback(found[0])]
    if len(outside) == 1:
        return outside[0]
    raise UsageError(
        f"cluster.master_addr = {world.master_addr} ({master}) does not say which interface of {host_name()} "
        f"the others reach: set cluster.network_interface (there is {', '.join(outside) or 'none'})"
    )


def _source_address(destination: str) -> str:
    """Return the address that packets to `destination` would come from. Nothing is sent."""
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))
        except OSError as error:
            raise UsageError(
                f"cluster.master_addr = {destination} cannot be reached from {host_name()}: {error.strerror}"
            ) from None
        return str(probe.getsockname()[0])


def require_place(world: World, wanted: str | None) -> None:
    """Choose gloo's interface, and raise UsageError if rank 0 cannot open its store on this host.

    Called before torch is loaded. `wanted` is the interface that the settings name, or None. Processes that
    this one starts use the same interface.
    """
    use_interface(world, wanted)
    if world.rank == 0 and not world.hosted:
        require_own_address(world)
        require_free_port(world)


def require_free_port(world: World) -> None:
    """Raise UsageError if another program uses the port of the store."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # the port may still have closed connections of an earlier run
        try:
            probe.bind(("", world.master_port or 0))
        except OSError as error:
            raise UsageError(
                f"cluster.master_port = {world.master_port} cannot be used on {host_name()}, "
                f"{world.master_addr}: {error.strerror}; choose another --master-port"
            ) from None


def require_own_address(world: World) -> None:
    """Raise UsageError unless the master's address belongs to this host, which is node 0."""
    if world.num_nodes == 1:
        return
    master = resolve(world.master_addr)
    family = socket.AF_INET6 if ":" in master else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        try:
            probe.bind((master, 0))
        except OSError:
            here = [each for found in addresses().values() for each in found if ":" not in each]
            raise UsageError(
                f"node 0 must be cluster.master_addr = {world.master_addr} ({master}), but this is "
                f"{host_name()} ({', '.join(here)}); only that host has --node-rank 0"
            ) from None


def files_needed(world: World) -> int:
    """Return how many files this process opens at most.

    Gloo opens one connection to each rank, and for hierarchical sums one more to each rank of the node and to
    each node. A rank 0 that keeps the store has three more from each rank.
    """
    groups = world.num_nodes + world.num_workers if world.num_nodes < world.size else 0
    return (4 if world.rank == 0 and not world.hosted else 1) * world.size + groups + OTHER_FILES


def raise_file_limit(world: World) -> None:
    """Raise this process's limit of open files to what it needs, or as far as the system allows."""
    needed, (soft, hard) = files_needed(world), resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))


def too_few_files(world: World) -> str | None:
    """Return the error message if this process may not open as many files as it needs, else None."""
    needed, (soft, _) = files_needed(world), resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    return (
        f"{world.rank_name(world.local_rank or 0)} needs {needed} open files for {world.size} ranks, but "
        f"may have {soft}: raise the system's limit (ulimit -Hn), or start fewer ranks of more threads"
    )
