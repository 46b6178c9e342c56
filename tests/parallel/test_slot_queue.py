"""Slot numbers between processes: in order, each delivered once, whoever is killed in the middle."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest

from rlcb.parallel.slot_queue import SlotQueue

CONTEXT = multiprocessing.get_context("spawn")
END = -1  # what tells a reader of these tests to leave


def write(queue_ends: Any, first: int, count: int) -> None:
    queue = SlotQueue(queue_ends)
    for number in range(first, first + count):
        queue.put(number)


def read(queue_ends: Any, results: Connection) -> None:
    """Report what is read until END comes."""
    queue, numbers = SlotQueue(queue_ends), []
    results.send("ready")
    while (number := queue.get(0.2)) != END:
        if number is not None:
            numbers.append(number)
    results.send(numbers)


def wait_for_ever(queue_ends: Any, results: Connection) -> None:
    queue = SlotQueue(queue_ends)
    results.send("ready")
    while True:
        assert queue.get(100.0) is None


def count_for_ever(queue_ends: Any, results: Connection, counted: Any) -> None:
    """Count in shared memory what is read."""
    queue = SlotQueue(queue_ends)
    results.send("ready")
    while True:
        if queue.get(100.0) is not None:
            counted.value += 1


class Supervisor:
    """Processes that are ended with the test."""

    def __init__(self) -> None:
        self.processes: list[Any] = []

    def start(self, function: Any, *arguments: Any) -> Any:
        process = CONTEXT.Process(target=function, args=arguments, daemon=True)
        process.start()
        self.processes.append(process)
        return process

    def reader(self, function: Any, ends: Any, *arguments: Any) -> tuple[Any, Connection]:
        """A process that reads, once it is ready, and where its results come from."""
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = self.start(function, ends, theirs, *arguments)
        assert ours.poll(60)
        assert ours.recv() == "ready"
        return process, ours


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    started = Supervisor()
    yield started
    for process in started.processes:
        process.kill()
        process.join()


@pytest.fixture
def ends() -> Any:
    return CONTEXT.Pipe(duplex=False)


def test_numbers_come_out_in_the_order_they_went_in(ends: Any) -> None:
    queue = SlotQueue(ends)
    for number in (3, 0, 1023, 3):
        queue.put(number)
    assert [queue.get(0.0) for _ in range(5)] == [3, 0, 1023, 3, None]


def test_it_holds_as_many_numbers_as_it_promises(ends: Any) -> None:
    queue = SlotQueue(ends)
    for number in range(SlotQueue.CAPACITY):
        queue.put(number)
    assert queue.drain() == list(range(SlotQueue.CAPACITY))
    assert queue.drain() == []


def test_waiting_ends_with_the_time_out_or_with_a_number(ends: Any) -> None:
    queue = SlotQueue(ends)
    started = time.monotonic()
    assert queue.get(0.2) is None
    assert time.monotonic() - started > 0.15
    queue.put(7)
    assert queue.get(100.0) == 7


def test_a_reader_that_others_were_faster_than_gets_nothing_and_does_not_wait(
    ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is gone between being seen and being read."""
    queue, real = SlotQueue(ends), os.read

    def read_twice(descriptor: int, size: int) -> bytes:
        real(descriptor, size)
        return real(descriptor, size)

    queue.put(1)
    monkeypatch.setattr(os, "read", read_twice)
    assert queue.get(0.0) is None


@pytest.mark.timeout(180)
def test_every_number_is_delivered_exactly_once_with_several_writers_and_readers(
    ends: Any, supervisor: Supervisor
) -> None:
    """More numbers than the pipe holds, so that writers wait for readers as well."""
    count, writers = 20_000, 2
    readers = [supervisor.reader(read, ends) for _ in range(2)]
    writing = [supervisor.start(write, ends, k * count, count) for k in range(writers)]
    for process in writing:
        process.join(60)
        assert process.exitcode == 0
    for _ in readers:
        SlotQueue(ends).put(END)
    results = []
    for _, connection in readers:
        assert connection.poll(20)
        results.append(connection.recv())
    assert sorted(number for part in results for number in part) == list(range(writers * count))
    for part in results:  # and what one reader gets of one writer comes in order
        for k in range(writers):
            own = [number for number in part if number // count == k]
            assert own == sorted(own)


@pytest.mark.timeout(180)
def test_readers_that_are_killed_while_they_wait_break_nothing(ends: Any, supervisor: Supervisor) -> None:
    queue = SlotQueue(ends)
    waiting = [supervisor.reader(wait_for_ever, ends)[0] for _ in range(2)]
    deadline = time.monotonic() + 60
    while any(psutil.Process(each.pid).status() != psutil.STATUS_SLEEPING for each in waiting):
        assert time.monotonic() < deadline, "they do not wait"
        time.sleep(0.05)
    for process in waiting:
        os.kill(process.pid, signal.SIGKILL)
        process.join(20)
    queue.put(5)
    assert queue.get(1.0) == 5
    _, connection = supervisor.reader(read, ends)
    for number in (*range(10), END):
        queue.put(number)
    assert connection.poll(20)
    assert connection.recv() == list(range(10))


@pytest.mark.timeout(180)
def test_a_reader_killed_at_any_moment_takes_at_most_one_number_with_it(
    ends: Any, supervisor: Supervisor
) -> None:
    """And never a part of one, which would shift all that follow."""
    queue, more, put = SlotQueue(ends), 1000, 0
    counted: Any = CONTEXT.RawValue("i", 0)
    process, _ = supervisor.reader(count_for_ever, ends, counted)
    while counted.value < 100 or put < 2000:  # so that it is at work
        queue.put(put)
        put += 1
    process.kill()
    process.join()
    rest = queue.drain()
    for number in range(put, put + more):
        queue.put(number)
    rest += queue.drain()
    first = put + more - len(rest)
    assert rest == list(range(first, put + more))
    assert first - counted.value in (0, 1)
