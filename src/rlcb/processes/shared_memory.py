"""Memory that the processes of a node share: a file without a name, mapped by each of them.

The file is deleted before anything is written to it, so however the processes end, nothing stays behind.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import tempfile
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcb.config.settings import ParallelConfig
from rlcb.errors import UsageError

SHARED_FOLDER = Path("/dev/shm")


def open_rollout(config: ParallelConfig, size: int) -> int:
    """Open the memory of a rollout where `parallel.buffer` says and return its descriptor. Raises
    UsageError."""
    if config.buffer == "mmap":
        return open_shared(size, Path(config.buffer_dir or tempfile.gettempdir()))
    return open_shared(size)


def open_shared(size: int, folder: Path | None = None) -> int:
    """Open a nameless file of `size` bytes, its space reserved, and return its descriptor.

    In /dev/shm where that exists, which is memory; with `folder` on that folder's disk, for rollouts larger
    than memory. Raises UsageError, with what is needed and what is there, if the space is too small.
    """
    place = folder or (SHARED_FOLDER if SHARED_FOLDER.is_dir() else Path(tempfile.gettempdir()))
    remedy = "parallel.buffer=mmap" if folder is None else "another parallel.buffer_dir"
    try:
        usage = os.statvfs(place)
        available = usage.f_bavail * usage.f_frsize
        if available < size:
            raise OSError(f"{available / 2**20:.0f} MB available")
        with tempfile.TemporaryFile(dir=place) as file:
            descriptor = os.dup(file.fileno())
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        raise UsageError(
            f"cannot reserve {size / 2**20:.0f} MB in {place} for the rollout: {error.strerror or error}; "
            f"use fewer steps or environments, or {remedy}"
        ) from None
    return descriptor


def map_shared(descriptor: int) -> mmap.mmap:
    """Map the whole file behind a descriptor, which is closed: the mapping keeps the memory."""
    try:
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


class SharedLock:
    """A lock for several processes that has no name, so that no kill leaves anything behind.

    It is a file lock on a nameless file: the system frees it when its holder ends. It can be passed to a
    process while that process is started. The threads of one process do not exclude each other.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = open_shared(1) if descriptor is None else descriptor

    def acquire(self) -> None:
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> SharedLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return _received_lock, (reduction.DupFd(self.descriptor),)


def _received_lock(descriptor: Any) -> SharedLock:
    return SharedLock(descriptor.detach())


Layout = dict[str, tuple[tuple[int, ...], "np.dtype[Any]"]]
"""Name -> (shape, dtype), in the order of memory."""

ALIGNMENT = 64  # a cache line


def _aligned_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT


def layout_bytes(layout: Layout) -> int:
    """Bytes that the arrays take, each beginning at a cache line."""
    return sum(_aligned_bytes(shape, dtype) for shape, dtype in layout.values())


def views(layout: Layout, memory: Any) -> dict[str, NDArray[Any]]:
    """The arrays of a layout as views of `memory`, a writable buffer of at least `layout_bytes` bytes."""
    arrays: dict[str, NDArray[Any]] = {}
    offset = 0
    for name, (shape, dtype) in layout.items():
        arrays[name] = np.ndarray(shape, dtype, memory, offset)
        offset += _aligned_bytes(shape, dtype)
    return arrays
