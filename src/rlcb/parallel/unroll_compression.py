"""Compress the unrolls of actors of other machines where that is faster than to send them as they are.

zlib at its fastest level leaves 13 % of the bytes of coinrun's frames, and 46 % of starpilot's. Whether that
pays depends on the network and on both processors. So every actor measures how long its unrolls take to the
learner's memory in either way: to compress, send and decompress.
"""

from __future__ import annotations

import statistics
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

LEVEL = 1  # of zlib: the fastest
TRIALS = 3  # of each way, before the faster one is used; one, if that takes less than half of the seconds
AGAIN = 50  # unrolls between two trials of the slower way

Arrays = Sequence[NDArray[Any]]


def compress(arrays: Arrays) -> NDArray[np.uint8]:
    """Return the bytes of arrays, one after the other, as one compressed stream."""
    compressor = zlib.compressobj(LEVEL)
    parts = [compressor.compress(byte_view(each)) for each in arrays]
    return np.frombuffer(b"".join([*parts, compressor.flush()]), np.uint8)


def most_bytes(size: int) -> int:
    """Return the largest number of bytes that `compress` makes of `size` bytes."""
    return size + size // 1000 + 64


def decompress(stream: bytearray, arrays: Arrays) -> None:
    """Fill contiguous arrays from the stream that `compress` returned. Raises ValueError if the stream is
    damaged or has another number of bytes than the arrays."""
    decompressor, rest = zlib.decompressobj(), memoryview(stream)
    try:
        for each in arrays:
            view = byte_view(each)
            view[:] = decompressor.decompress(rest, view.nbytes)
            rest = memoryview(decompressor.unconsumed_tail)
        more = decompressor.decompress(rest, 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if more or not decompressor.eof or decompressor.unused_data:
        raise ValueError("another number of bytes")


def byte_view(array: NDArray[Any]) -> memoryview:
    """Return the bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


class CompressionChoice:
    """Chooses whether an actor compresses its next unroll, from the seconds that the last ones took."""

    def __init__(self, setting: Literal["auto", "always", "never"] = "auto") -> None:
        """`setting` is impala.compress_unrolls."""
        self._setting = setting
        self._seconds = {way: deque[float](maxlen=TRIALS) for way in (False, True)}
        """Of the newest unrolls without and with compression."""
        self._count = 0

    def compresses_next(self) -> bool:
        """Return whether to compress the next unroll: the ways alternate until each has had its trials."""
        if self._setting != "auto":
            return self._setting == "always"
        plain, compressed = self._seconds[False], self._seconds[True]
        if not compressed:
            return bool(plain)
        medians = statistics.median(plain), statistics.median(compressed)
        if len(compressed) < TRIALS and max(medians) < 2 * min(medians):
            return len(plain) > len(compressed)
        is_faster = medians[1] < medians[0]
        return is_faster if self._count % AGAIN else not is_faster

    def note(self, compressed: bool, seconds: float) -> None:
        """Note the seconds that an unroll took from the actor to the learner's memory."""
        self._seconds[compressed].append(seconds)
        self._count += 1
