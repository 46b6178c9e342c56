"""Memory that the processes of a node share: a file without a name, mapped by each of them.

The file is deleted before anything is written to it, so however the processes end, nothing stays behind.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

from src.errors import UsageError
from src.settings import ParallelConfig

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
