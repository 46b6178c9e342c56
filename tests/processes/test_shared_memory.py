"""Shared memory of workers: no name, the right size, and an early word when there is too little."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlcb.errors import UsageError
from rlcb.processes.shared_memory import SHARED_FOLDER, map_shared, open_shared


def test_two_mappings_of_one_descriptor_are_the_same_memory_without_a_file(tmp_path: Path) -> None:
    descriptor = open_shared(10_000, tmp_path)
    first, second = map_shared(os.dup(descriptor)), map_shared(descriptor)
    first[1234] = 77
    assert second[1234] == 77
    assert len(first) == 10_000
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_said_with_what_is_needed_and_available(tmp_path: Path) -> None:
    usage = os.statvfs(tmp_path)
    available = usage.f_bavail * usage.f_frsize
    with pytest.raises(UsageError, match=r"cannot reserve \d+ MB in .*: \d+ MB available"):
        open_shared(2 * available, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not SHARED_FOLDER.is_dir(), reason="this system has no /dev/shm")
def test_without_a_folder_the_memory_is_in_dev_shm() -> None:
    before = set(SHARED_FOLDER.iterdir())
    descriptor = open_shared(4096)
    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(SHARED_FOLDER))
    assert set(SHARED_FOLDER.iterdir()) == before
    os.close(descriptor)
