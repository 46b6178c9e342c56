"""Cores for worker processes: chosen from the machine's topology, and claimed against other runs.

Only CPUs of this process's mask are used, so `taskset`, `srun --cpu-bind` and the cpusets of control groups
are respected. Hyper-threads of a core go to one worker, and the cores of a worker are of one NUMA node.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlcb.text import counted

logger = logging.getLogger(__name__)

SYSTEM = Path("/sys/devices/system")
CLAIMS, LOCK_NAME = Path("/tmp"), "rl-cluster-benchmark-cpu"
Pinning = tuple[tuple[int, ...], ...]
"""The logical CPUs of each worker of a node; empty: they are not pinned."""


@dataclass(frozen=True)
class Core:
    """A physical core."""

    cpus: tuple[int, ...]
    """Its logical CPUs (hyper-threads) that this process may use."""
    numa_node: int


def read_cores(allowed: Collection[int], system: Path = SYSTEM) -> list[Core]:
    """Return the physical cores with at least one allowed logical CPU, in the order of their first CPU.

    Where the system does not describe a CPU, it counts as a core of its own on node 0.
    """
    cores: dict[str, list[int]] = defaultdict(list)
    for cpu in sorted(allowed):
        try:
            text = (system / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            text = str(cpu)
        cores[text].append(cpu)
    return [Core(tuple(cpus), _numa_node(cpus[0], system)) for cpus in cores.values()]


def _numa_node(cpu: int, system: Path) -> int:
    names = [path.name for path in (system / f"cpu/cpu{cpu}").glob("node*")]
    numbers = [int(found.group(1)) for name in names if (found := re.fullmatch(r"node(\d+)", name))]
    return min(numbers, default=0)


def place(cores: Collection[Core], workers: int, threads: int) -> Pinning:
    """Return the CPUs of each worker: those of `threads` cores of one NUMA node that no other worker has.

    Each worker goes to the node with most cores left, so that workers use the caches and the memory of all
    nodes. Returns () if there are too few cores.
    """
    left: dict[int, list[Core]] = defaultdict(list)
    for core in cores:
        left[core.numa_node].append(core)
    placed = []
    for _ in range(workers):
        node = max(sorted(left), key=lambda each: len(left[each]), default=None)
        if node is None or len(left[node]) < threads:
            return ()
        taken, left[node] = left[node][:threads], left[node][threads:]
        placed.append(tuple(cpu for core in taken for cpu in core.cpus))
    return tuple(placed)


@contextlib.contextmanager
def pinned_cores(
    allowed: Collection[int], workers: int, threads: int, claims: Path = CLAIMS, system: Path = SYSTEM
) -> Iterator[Pinning]:
    """Claim cores for the workers of a run until the exit, and give the CPUs of each worker.

    Cores that other runs of this machine have claimed are left to them. Warns and gives () if too few cores
    are free.
    """
    turn = _lock(claims / f"{LOCK_NAME}s.lock", fcntl.LOCK_EX)  # one run at a time looks for free cores
    claimed = {}
    for core in read_cores(allowed, system):
        descriptor = _lock(claims / f"{LOCK_NAME}{core.cpus[0]}.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        if descriptor is not None:
            claimed[core] = descriptor
    pinning = place(claimed, workers, threads)
    used = {cpu for cpus in pinning for cpu in cpus}
    for core in [each for each in claimed if each.cpus[0] not in used]:
        os.close(claimed.pop(core))
    if turn is not None:
        os.close(turn)
    if not pinning:
        logger.warning(
            "hardware.pin_workers = true: not pinned, because %s of %s do not fit on the cores of this run "
            "that no other run has claimed",
            *(counted(workers, "worker"), counted(threads, "thread")),
        )
    try:
        yield pinning
    finally:
        for descriptor in claimed.values():
            os.close(descriptor)


def _lock(path: Path, how: int) -> int | None:
    """Lock a file with flock and return its descriptor; None if another run holds it, or it cannot be opened.

    The system frees the lock when the process ends. The file stays: to delete it could free a claim.
    """
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            os.fchmod(descriptor, 0o666)  # for all users, whatever the umask says
    except OSError:
        return None  # no right to claim this core
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
