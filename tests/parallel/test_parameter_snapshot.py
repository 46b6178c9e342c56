"""Published parameters: readers have a whole version, never an older one, and hold nobody up."""

from __future__ import annotations

import mmap
import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

from rlcb.parallel.parameter_snapshot import ParameterSnapshot, checksum, snapshot_bytes
from tests import runs

CONTEXT = multiprocessing.get_context("spawn")
SIZE = 50_000


def of_version(version: int, size: int) -> torch.Tensor:
    """Parameters in which every number says the version, exactly in float32."""
    return torch.full((size,), float(version))


def in_memory(size: int) -> ParameterSnapshot:
    return ParameterSnapshot(size, bytearray(snapshot_bytes(size)))


@contextmanager
def mapped(path: Path, size: int) -> Iterator[ParameterSnapshot]:
    with path.open("r+b") as file:
        yield ParameterSnapshot(size, mmap.mmap(file.fileno(), snapshot_bytes(size)))


def read_many(path: Path, count: int, results: Connection) -> None:
    """Read until `count` versions were seen; report all of them and whether their numbers were their own."""
    torch.set_num_threads(1)
    with mapped(path, SIZE) as weights:
        parameters, seen, whole = torch.zeros(SIZE), [], True
        while len(set(seen)) < count:
            version = weights.read(parameters)
            whole &= bool((parameters == float(version)).all())
            seen.append(version)
        results.send((seen, whole))


def publish_for_ever(path: Path, results: Connection) -> None:
    torch.set_num_threads(1)
    with mapped(path, SIZE) as weights:
        version = 0
        while True:
            weights.publish(of_version(version, SIZE), version)
            version += 1
            if version == 2:
                results.send("ready")


def test_what_was_published_last_is_read_with_its_version() -> None:
    weights, parameters = in_memory(5), torch.zeros(5)
    for version in (0, 1, 2, 7):
        published = torch.randn(5)
        weights.publish(published, version)
        assert weights.read(parameters) == version
        assert torch.equal(parameters, published)
        assert weights.read(parameters) == version  # as often as one likes


def test_later_changes_of_the_learners_parameters_are_not_published_by_themselves() -> None:
    weights, parameters, own = in_memory(3), torch.zeros(3), torch.ones(3)
    weights.publish(own, 0)
    own.add_(5)
    weights.read(parameters)
    assert torch.equal(parameters, torch.ones(3))


def test_a_copy_that_is_being_overwritten_is_never_taken_for_a_version() -> None:
    """Every state that the memory has while a version is published, as a reader could find it."""
    weights, parameters = in_memory(4), torch.zeros(4)
    for version in (0, 1):
        weights.publish(of_version(version, 4), version)
    index = int(weights.latest[0])
    weights.copies[index, 2:] = 9.0  # the writer comes round to the copy that the reader holds
    result: list[int] = []
    reader = threading.Thread(target=lambda: result.append(weights.read(parameters)), daemon=True)
    reader.start()
    time.sleep(0.1)
    assert result == []
    weights.publish(of_version(2, 4), 2)
    reader.join(10)
    assert result == [2]
    assert torch.equal(parameters, of_version(2, 4))


@pytest.mark.parametrize("damage", ["version", "checksum", "parameters"])
def test_a_copy_counts_only_with_its_own_version_and_checksum(damage: str) -> None:
    weights, parameters = in_memory(4), torch.zeros(4)
    weights.publish(torch.arange(4.0), 3)
    index = int(weights.latest[0])
    if damage == "version":
        weights.versions[index] = -1
    elif damage == "checksum":
        weights.checksums[index] ^= 1
    else:
        weights.copies[index, 3] = float(np.nextafter(np.float32(3), np.float32(4)))
    reader = threading.Thread(target=lambda: weights.read(parameters), daemon=True)
    reader.start()
    reader.join(0.1)
    assert reader.is_alive()
    weights.publish(torch.arange(4.0), 4)
    reader.join(10)
    assert not reader.is_alive()


@pytest.mark.parametrize(("count", "changed"), [(1000, 500), (1001, 1000), (1, 0)])
def test_the_checksum_sees_a_single_bit(count: int, changed: int) -> None:
    parameters = torch.randn(count)
    before = checksum(parameters)
    parameters[changed] *= -1
    assert checksum(parameters) != before


def test_a_mixture_of_two_versions_has_the_checksum_of_neither() -> None:
    old, new = torch.randn(1001), torch.randn(1001)
    for split in range(1, 1001):
        assert checksum(torch.cat([new[:split], old[split:]])) not in (checksum(old), checksum(new))


@pytest.mark.timeout(180)
def test_readers_always_have_one_whole_version_and_never_an_older_one(tmp_path: Path) -> None:
    """A learner publishes all the time while two processes read without a pause."""
    path, processes, connections = tmp_path / "weights", [], []
    path.write_bytes(bytes(snapshot_bytes(SIZE)))
    with mapped(path, SIZE) as weights:
        for _ in range(2):
            ours, theirs = CONTEXT.Pipe(duplex=False)
            process = runs.worker_server().Process(target=read_many, args=(path, 30, theirs), daemon=True)
            process.start()
            processes.append(process)
            connections.append(ours)
        version, deadline = 0, time.monotonic() + 60
        while not all(connection.poll() for connection in connections):
            assert time.monotonic() < deadline
            weights.publish(of_version(version, SIZE), version)
            version += 1
            time.sleep(0.001 * (version % 3))  # also at once after the one before
        for process, connection in zip(processes, connections, strict=True):
            seen, whole = connection.recv()
            assert whole
            assert seen == sorted(seen)
            assert seen[-1] < version
            process.join(20)


@pytest.mark.timeout(180)
def test_a_writer_killed_in_the_middle_leaves_a_whole_version_or_one_that_is_not_taken(
    tmp_path: Path,
) -> None:
    path, parameters = tmp_path / "weights", torch.zeros(SIZE)
    path.write_bytes(bytes(snapshot_bytes(SIZE)))
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = runs.worker_server().Process(target=publish_for_ever, args=(path, theirs), daemon=True)
    process.start()
    assert ours.poll(40)
    process.kill()
    process.join()
    with mapped(path, SIZE) as weights:
        version = weights.read(parameters)  # the copy that was not being written
        assert torch.equal(parameters, of_version(version, SIZE))
