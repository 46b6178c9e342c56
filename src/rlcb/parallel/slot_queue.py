"""A queue of slot numbers between processes that may be killed at any moment."""

from __future__ import annotations

import os
import select
import struct
from multiprocessing.connection import Connection

_NUMBER = struct.Struct("=i")


class SlotQueue:
    """A first-in, first-out queue of small integers for any number of writers and readers.

    It is a pipe: the system writes and reads four bytes at once or not at all, so there is no lock that a
    killed process could leave behind. It can be passed to child processes.
    """

    CAPACITY = 1024
    """How many numbers it holds at least: a page of memory."""

    def __init__(self, ends: tuple[Connection, Connection]) -> None:
        """`ends` are the two ends of a one-way multiprocessing.Pipe: to read from, to write to."""
        self.ends = ends
        os.set_blocking(ends[0].fileno(), False)

    def put(self, slot: int) -> None:
        """Append a number. Blocks while the queue is full."""
        os.write(self.ends[1].fileno(), _NUMBER.pack(slot))

    def get(self, timeout: float) -> int | None:
        """Take the oldest number; None if none came for `timeout` seconds or another reader was faster."""
        descriptor = self.ends[0].fileno()
        if not select.select([descriptor], [], [], timeout)[0]:
            return None
        try:
            return int(_NUMBER.unpack(os.read(descriptor, _NUMBER.size))[0])
        except BlockingIOError:
            return None

    def drain(self) -> list[int]:
        """Take all numbers that are there now."""
        slots = []
        while (slot := self.get(0.0)) is not None:
            slots.append(slot)
        return slots

    def is_empty(self) -> bool:
        """Whether no number is there now."""
        return not select.select([self.ends[0].fileno()], [], [], 0)[0]

    def put_first(self, slot: int) -> None:
        """Put a number before all that are there now. Numbers that are put meanwhile may come before it."""
        for each in [slot, *self.drain()]:
            self.put(each)
