"""Cores, threads, memory and allocator: what the machine offers, and how a process uses it.

Imports nothing heavy, because it must run before torch is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import os
import platform
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

SPIN_COUNT = "20000"  # about 50 us; with fewer, threads sleep and wake at every layer of a small network

# glibc's mallopt parameters (malloc.h)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


_before_pinning: set[int] = set()


def pin(cpus: Collection[int]) -> None:
    """Let this process and its later threads run on these logical CPUs only.

    `allowed_cpus` and `usable_cores` still describe what the run may use.
    """
    _before_pinning.update(allowed_cpus())
    os.sched_setaffinity(0, cpus)


def allowed_cpus() -> set[int]:
    """Return the numbers of the logical CPUs that this process may use, or might before `pin`."""
    if _before_pinning:
        return set(_before_pinning)
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def _cgroup_limits(
    controller: str, names: tuple[str, ...], v1_names: tuple[str, ...], root: Path, own: Path
) -> list[list[int]]:
    """Return the limits of this process's control groups and their ancestors, one list of numbers per limit.

    The numbers are those in the files `names` of a group (cgroup version 2) or `v1_names` (version 1). Groups
    without a limit are left out.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, files = root, names
        elif controller in controllers.split(","):
            base, files = root / controller, v1_names
        else:
            continue
        group = base / path.lstrip("/")
        for folder in [group, *group.parents]:
            try:
                values = " ".join((folder / name).read_text().strip() for name in files).split()
                if values[0] not in ("max", "-1"):
                    limits.append([int(value) for value in values])
            except (OSError, ValueError, IndexError):
                pass  # a level of the hierarchy that sets no limit
            if folder == base:
                break
    return limits


def _cgroup_cpu_quota(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> float | None:
    """Return how many CPUs the control group of this process may use; None if unlimited."""
    v1_names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    quotas = [limit[0] / limit[1] for limit in _cgroup_limits("cpu", ("cpu.max",), v1_names, root, own)]
    return min(quotas, default=None)


def usable_memory(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """Return the bytes of memory available to the run: the machine's, or the limit of the control group."""
    import psutil

    limits = _cgroup_limits("memory", ("memory.max",), ("memory.limit_in_bytes",), root, own)
    return min([int(psutil.virtual_memory().total), *(limit[0] for limit in limits)])


def usable_cores() -> int:
    """Return how many physical cores this process may use, at least 1.

    Considers CPU affinity, hyper-threads and the quota of the control group.
    """
    cpus = allowed_cpus()
    cores = set()
    for cpu in cpus:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    count = len(cores)
    if not Path("/sys/devices/system/cpu").exists():
        import psutil

        count = min(count, psutil.cpu_count(logical=False) or count)
    quota = _cgroup_cpu_quota()
    return max(1, min(count, math.ceil(quota)) if quota is not None else count)


def choose_threads(requested: int | None, default: int | None = None) -> int:
    """Return the number of threads for one process.

    This is `requested` if given, else a valid OMP_NUM_THREADS, else `default`, else the usable cores.
    """
    if requested is not None:
        return requested
    explicit = os.environ.get("OMP_NUM_THREADS", "")
    return int(explicit) if explicit.isdigit() and int(explicit) > 0 else default or usable_cores()


def set_thread_environment(num_threads: int) -> None:
    """Set the number of threads of OpenMP, MKL and OpenBLAS. Call it before torch is imported.

    Also limits how long waiting threads spin, unless the environment sets it. With the default of GNU OpenMP
    an update takes 5 to 10 times as long if another process uses one of the cores now and then.
    """
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(num_threads)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def set_torch_threads(num_threads: int) -> None:
    """Set the number of threads that torch uses for one operator."""
    import torch

    torch.set_num_threads(num_threads)


def tune_allocator() -> bool:
    """Make glibc reuse freed pages instead of returning them to the system; return whether it took effect.

    An update allocates and frees activations of several megabytes thousands of times. The kernel zeroes
    returned pages each time, which takes a third of an update with the IMPALA-CNN. Other C libraries are not
    changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 * 2**20), (_M_ARENA_MAX, 1))
    accepted = [mallopt(parameter, value) == 1 for parameter, value in settings]
    return all(accepted)


def calm_threads(name: str) -> int:
    """Give the threads named `name` of this process the policy SCHED_BATCH; return how many there are.

    Such a thread does not preempt a running thread when it wakes up. Its share of the processor stays the
    same. Changes nothing on other systems than Linux, or without permission.
    """
    found = 0
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # the thread has ended, or there is no permission
            if (thread / "comm").read_text().strip() == name:
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
                found += 1
    return found


def suggested_microbatch(sample_bytes: int) -> int:
    """Return the default microbatch size: a power of two from 32 to 256.

    `sample_bytes` is the size of one sample's activations in the largest layer. The working set of one layer
    (input, output and gradients) should fit the caches. Larger microbatches were not faster.
    """
    target = 16 * 2**20
    exponent = math.floor(math.log2(max(1, target // max(1, sample_bytes))))
    return int(min(256, max(32, 2**exponent)))


@functools.cache
def cpu_model() -> str:
    """Return the name of the processor, as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


@functools.cache
def has_bfloat16() -> bool:
    """Whether the processor has instructions that multiply bfloat16 numbers."""
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(cpu_flags())


def describe_machine() -> dict[str, Any]:
    """Return the CPU model, the cores (physical, usable, logical), the memory in GB and the load."""
    import psutil

    return {
        "cpu_model": cpu_model(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cpus": psutil.cpu_count(logical=True),
        "usable_cores": usable_cores(),
        "ram_gb": round(psutil.virtual_memory().total / 2**30, 2),
        "platform": platform.platform(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


CPUINFO = Path("/proc/cpuinfo")
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
IDENTITY = ("cpu family", "model", "stepping")
ARM_IDENTITY = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision")


def cpuinfo_values(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Return the entries of /proc/cpuinfo for the first core; {} on systems without it."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return {}  # not Linux
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def cpu_flags(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Return which instruction sets of CPU_FLAGS the processor has; () if the system does not report any."""
    values = cpuinfo_values(cpuinfo)
    named = set((values.get("flags") or values.get("Features") or "").split())
    return tuple(flag for flag in CPU_FLAGS if flag in named)


def cpu_identity(cpuinfo: Path = CPUINFO) -> str:
    """Return family, model and stepping, or ARM's equivalents; "" if the system does not report them.

    Example: `cpu family 25, model 17, stepping 1`.
    """
    values = cpuinfo_values(cpuinfo)
    return ", ".join(f"{name} {values[name]}" for name in (*IDENTITY, *ARM_IDENTITY) if name in values)


def prepare_process(
    num_threads: int | None, allocator: bool = True, default_threads: int | None = None
) -> int:
    """Set this process's number of threads and its allocator; return the number of threads.

    Call it before torch is imported: OpenMP reads its environment variables only then.
    """
    chosen = choose_threads(num_threads, default_threads)
    set_thread_environment(chosen)
    if allocator:
        tune_allocator()
    return chosen
