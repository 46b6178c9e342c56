"""Find a process's place in a distributed run: its node, its rank, and the address of node 0.

The place comes from torchrun (RANK, WORLD_SIZE, ...), from SLURM within an `srun` step, or from flags on each
node. Values that are given twice must agree. What a launcher does not tell, the nodes tell each other
afterwards (node_sizes.py). Nothing here loads torch.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlcb.config.settings import ClusterConfig
from rlcb.cpu import usable_cores
from rlcb.errors import UsageError
from rlcb.parallel.world import World, host_name
from rlcb.text import counted

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 29500
SLURM_PORTS = range(15_000, 30_000)  # below the ports that operating systems assign to connections
Source = tuple[str, Any]  # the name of a setting, flag or variable, and its value or None


def discover(cluster: ClusterConfig, node_rank: int | None, environ: Mapping[str, str]) -> World:
    """Return this process's place. Raises UsageError that names both values if two sources disagree."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        world = _from_torchrun(cluster, node_rank, environ)
    elif (
        "SLURM_STEP_ID" in environ and "SLURM_PROCID" in environ and not _by_hand(cluster, node_rank, environ)
    ):
        world = _from_slurm(cluster, node_rank, environ)
    else:
        world = _from_flags(cluster, node_rank, environ)
    if world.num_nodes > 1:
        _refuse_loopback(world)
    return world


def as_starter(world: World) -> World:
    """Return the place of a process that is not a rank but starts all workers of its node, as for IMPALA.

    Raises UsageError if the launcher has started several processes on each node.
    """
    if world.local_rank is not None and world.size > world.num_nodes:
        flag = "--nproc-per-node 1" if world.launcher == "torchrun" else "--ntasks-per-node 1"
        raise UsageError(
            f"{world.launcher} starts {world.size} processes on {counted(world.num_nodes, 'node')}, but "
            f"IMPALA takes one on each, which starts the node's actors and learners: use {flag}, and "
            "impala.num_learners for more learners"
        )
    return replace(world, num_workers=1, local_rank=None, node_sizes=(), complete=True)


def settle(*sources: Source, default: Any = None) -> Any:
    """Return the value that all sources agree on, or `default` if none has one. Raises UsageError."""
    given = [(where, value) for where, value in sources if value is not None]
    for where, value in given[1:]:
        if value != given[0][1]:
            raise UsageError(f"{given[0][0]} = {given[0][1]} contradicts {where} = {value}")
    return given[0][1] if given else default


def number(environ: Mapping[str, str], name: str) -> int | None:
    """Return an environment variable as a whole number, None if it is not set. Raises UsageError."""
    text = environ.get(name)
    if text is None or text == "":
        return None
    if not text.isdigit():
        raise UsageError(f"{name} = {text!r} in the environment: expected a whole number")
    return int(text)


def _required(environ: Mapping[str, str], name: str, known: str) -> int:
    value = number(environ, name)
    if value is None:
        raise UsageError(f"{known} is set but {name} is not: start every process through one launcher")
    return value


def _master(cluster: ClusterConfig, environ: Mapping[str, str]) -> tuple[Source, Source]:
    return (
        ("cluster.master_addr", cluster.master_addr),
        ("MASTER_ADDR", environ.get("MASTER_ADDR") or None),
    )


def _port(cluster: ClusterConfig, environ: Mapping[str, str]) -> tuple[Source, Source]:
    return ("cluster.master_port", cluster.master_port), ("MASTER_PORT", number(environ, "MASTER_PORT"))


def _nodes(cluster: ClusterConfig) -> tuple[Source, Source]:
    sizes = cluster.node_workers
    return (
        ("cluster.num_nodes", cluster.num_nodes),
        ("the length of cluster.node_workers", None if sizes is None else len(sizes)),
    )


def _workers(cluster: ClusterConfig, node: int) -> tuple[Source, Source]:
    """Return what the settings say about the number of workers of a node."""
    sizes = cluster.node_workers
    known = sizes is not None and node < len(sizes)
    return (
        ("cluster.num_workers", cluster.num_workers),
        (f"cluster.node_workers[{node}]", sizes[node] if sizes is not None and known else None),
    )


def _from_torchrun(cluster: ClusterConfig, node_rank: int | None, environ: Mapping[str, str]) -> World:
    """Return the place of a process that torchrun started: it is one rank."""
    size = _required(environ, "WORLD_SIZE", "RANK")
    rank, local_rank = _required(environ, "RANK", "WORLD_SIZE"), _required(environ, "LOCAL_RANK", "RANK")
    workers = _required(environ, "LOCAL_WORLD_SIZE", "RANK")
    nodes = settle(
        *_nodes(cluster),
        ("GROUP_WORLD_SIZE", number(environ, "GROUP_WORLD_SIZE")),
        default=max(1, size // workers),
    )
    node = settle(
        ("--node-rank", node_rank), ("GROUP_RANK", number(environ, "GROUP_RANK")), default=rank // workers
    )
    settle(*_workers(cluster, node), ("LOCAL_WORLD_SIZE", workers))
    before, after = rank - local_rank, size - (rank - local_rank) - workers
    if not (_fits(before, node) and _fits(after, nodes - node - 1)):
        raise UsageError(
            f"RANK = {rank} of WORLD_SIZE = {size} contradicts LOCAL_RANK = {local_rank} of "
            f"LOCAL_WORLD_SIZE = {workers} on node {node} of {nodes}"
        )
    # Of more than two nodes, only the sum of the other nodes' processes is known.
    sizes = [0] * nodes
    sizes[0], sizes[-1] = before, after
    sizes[node] = workers
    return World(
        "torchrun",
        nodes,
        node,
        workers,
        local_rank,
        settle(*_master(cluster, environ), default=LOOPBACK),
        settle(*_port(cluster, environ), default=DEFAULT_PORT),
        hosted=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        restarts=number(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
        node_sizes=tuple(sizes),
        complete=nodes <= 2,
    )


def _fits(ranks: int, nodes: int) -> bool:
    """Return whether so many ranks can be those of so many nodes, each of which has at least one."""
    return ranks >= nodes if nodes else ranks == 0


def _by_hand(cluster: ClusterConfig, node_rank: int | None, environ: Mapping[str, str]) -> bool:
    """Return whether flags give the place although SLURM variables are set, as in a shell within a job."""
    single = number(environ, "SLURM_STEP_NUM_TASKS") == 1
    return single and node_rank is not None and cluster.num_nodes is not None and cluster.num_nodes > 1


def _from_slurm(cluster: ClusterConfig, node_rank: int | None, environ: Mapping[str, str]) -> World:
    """Return the place of an srun task: one per node, which starts the node's workers, or one per worker."""
    nodes = settle(
        *_nodes(cluster),
        ("SLURM_STEP_NUM_NODES", _required(environ, "SLURM_STEP_NUM_NODES", "SLURM_PROCID")),
    )
    node = settle(
        ("--node-rank", node_rank), ("SLURM_NODEID", _required(environ, "SLURM_NODEID", "SLURM_PROCID"))
    )
    sizes, starts = _tasks_per_node(nodes, environ), False
    if max(sizes) == 1:
        starts, workers = True, settle(*_workers(cluster, node), default=usable_cores())
    else:
        workers = settle(*_workers(cluster, node), ("SLURM_STEP_TASKS_PER_NODE", sizes[node]))
    job = _required(environ, "SLURM_JOB_ID", "SLURM_PROCID")
    return World(
        "slurm",
        nodes,
        node,
        workers,
        None if starts else _required(environ, "SLURM_LOCALID", "SLURM_PROCID"),
        settle(*_master(cluster, environ)) or _first_host(nodes, environ),
        settle(*_port(cluster, environ), default=SLURM_PORTS[job % len(SLURM_PORTS)]),
        restarts=number(environ, "SLURM_RESTART_COUNT") or 0,
        node_sizes=() if starts else sizes,
        complete=nodes == 1 or not starts,
    )


def _tasks_per_node(nodes: int, environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the number of tasks of each node of this srun step. Raises UsageError."""
    tasks = _required(environ, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
    text = environ.get("SLURM_STEP_TASKS_PER_NODE")
    if text is None:
        if tasks % nodes:
            raise UsageError(
                f"SLURM_STEP_NUM_TASKS = {tasks} is no multiple of SLURM_STEP_NUM_NODES = {nodes}, and "
                "SLURM_STEP_TASKS_PER_NODE is not set: use srun --ntasks-per-node"
            )
        return (tasks // nodes,) * nodes
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    sizes = [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]
    if None in parts or len(sizes) != nodes or sum(sizes) != tasks:
        raise UsageError(
            f"SLURM_STEP_TASKS_PER_NODE = {text!r} contradicts SLURM_STEP_NUM_TASKS = {tasks} on "
            f"SLURM_STEP_NUM_NODES = {nodes}"
        )
    return tuple(sizes)


def _first_host(nodes: int, environ: Mapping[str, str]) -> str:
    """Return the name of the first node of this srun step. Raises UsageError."""
    if nodes == 1:
        return LOOPBACK
    command = ["scontrol", "show", "hostnames", environ.get("SLURM_STEP_NODELIST", "")]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return result.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise UsageError(f"{' '.join(command)} failed ({error}): give --master-addr") from None


def _from_flags(cluster: ClusterConfig, node_rank: int | None, environ: Mapping[str, str]) -> World:
    """Return the place of a process that was started by hand, one per node."""
    allocated = number(environ, "SLURM_JOB_NUM_NODES") or 1
    if settle(*_nodes(cluster)) is None and allocated > 1:
        raise UsageError(
            f"this is one process outside srun in a SLURM job of {allocated} nodes: start it with srun, "
            "or give --num-nodes, --node-rank and --master-addr"
        )
    nodes = settle(*_nodes(cluster), default=1)
    if cluster.elastic:  # any number may come
        node_rank = node_rank or 0
        nodes = max(nodes, node_rank + 1)
    if nodes > 1 and node_rank is None:
        raise UsageError(f"cluster.num_nodes = {nodes} needs --node-rank, from 0 to {nodes - 1}")
    if node_rank is not None and not 0 <= node_rank < nodes:
        raise UsageError(
            f"--node-rank {node_rank} must be from 0 to {nodes - 1}: cluster.num_nodes = {nodes}"
        )
    master = settle(*_master(cluster, environ))
    if nodes > 1 and master is None:
        raise UsageError(f"cluster.num_nodes = {nodes} needs --master-addr, the address of node 0")
    node = node_rank or 0
    workers = settle(*_workers(cluster, node), default=usable_cores())
    port = settle(*_port(cluster, environ), default=DEFAULT_PORT if nodes > 1 or cluster.elastic else None)
    restarts = number(environ, "SLURM_RESTART_COUNT") or 0
    return World(
        *("hand", nodes, node, workers, None, master or LOOPBACK, port),
        restarts=restarts,
        complete=nodes == 1,
    )


def resolve(host: str) -> str:
    """Return the IPv4 or IPv6 address of a host. Raises UsageError."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(f"cluster.master_addr = {host}: cannot be resolved ({error.strerror})") from None


def is_loopback(address: str) -> bool:
    """Return whether an IPv4 or IPv6 address is only reachable from its own host."""
    return address.startswith("127.") or address == "::1"


def _refuse_loopback(world: World) -> None:
    """Raise UsageError if other nodes cannot reach the master's address."""
    # On Debian a host resolves its own name to 127.0.1.1, other hosts do not.
    if world.node_rank == 0 and world.master_addr in (host_name(), socket.gethostname()):
        return
    if is_loopback(resolve(world.master_addr)):
        raise UsageError(
            f"cluster.master_addr = {world.master_addr} is the loopback interface, which no other node "
            f"reaches, but cluster.num_nodes = {world.num_nodes}"
        )
