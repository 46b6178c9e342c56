"""Compressed unrolls have the bits of the originals, and an actor uses the way that measures faster."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from rlcb.parallel.unroll_compression import (
    AGAIN,
    TRIALS,
    CompressionChoice,
    compress,
    decompress,
    most_bytes,
)

RNG = np.random.default_rng(3)


def unroll() -> list[NDArray]:
    """Arrays of all kinds that an unroll has."""
    return [
        np.zeros((4, 3, 64, 64, 3), np.uint8),
        RNG.integers(-(2**60), 2**60, (4, 3)),
        RNG.integers(0, 2**32, (4, 3), np.uint32).view(np.float32),  # NaNs of all kinds among them
        RNG.random((4, 3)) < 0.5,
        RNG.integers(0, 256, (3, 64, 64, 3), np.uint8),
    ]


def test_every_bit_comes_back() -> None:
    sent = unroll()
    stream = compress(sent)
    assert stream.nbytes < 0.6 * sum(each.nbytes for each in sent)
    received = [np.full_like(each, 1) for each in sent]
    decompress(bytearray(stream), received)
    assert [each.tobytes() for each in received] == [each.tobytes() for each in sent]
    assert zlib.decompress(stream) == b"".join(each.tobytes() for each in sent)


@pytest.mark.parametrize("size", [1, 100, 10_000, 1_000_000])
def test_a_stream_of_noise_is_as_long_as_the_receiver_expects_at_most(size: int) -> None:
    noise = RNG.integers(0, 256, size, np.uint8)
    assert compress([noise]).nbytes <= most_bytes(size)


@pytest.mark.parametrize(
    "change",
    {
        "the end is missing": lambda stream: stream[:-1],
        "nothing": lambda stream: stream[:0],
        "more than a stream": lambda stream: stream + b"1",
        "another checksum": lambda stream: stream[:-1] + bytes([stream[-1] ^ 1]),
        "no stream": lambda stream: b"\xff" * len(stream),
        "more content": lambda stream: zlib.compress(zlib.decompress(stream) + b"1", 1),
        "less content": lambda stream: zlib.compress(zlib.decompress(stream)[:-1], 1),
        "a thousand times as much": lambda stream: zlib.compress(bytes(10**8), 1),
    }.values(),
)
def test_a_stream_that_is_not_that_of_the_arrays_is_refused(change: Callable[[bytes], bytes]) -> None:
    arrays = unroll()
    stream = compress(arrays).tobytes()
    with pytest.raises(ValueError, match=r"."):
        decompress(bytearray(change(stream)), arrays)


def ways(choice: CompressionChoice, count: int, plain: float, compressed: float) -> list[bool]:
    """What an actor chooses for its next unrolls, if these are the seconds that they take."""
    chosen = []
    for _ in range(count):
        chosen.append(choice.compresses_next())
        choice.note(chosen[-1], compressed if chosen[-1] else plain)
    return chosen


def test_both_ways_are_measured_and_the_faster_one_is_used() -> None:
    for plain, compressed, trials in ((1.0, 1.9, TRIALS), (1.9, 1.0, TRIALS), (1.0, 2.1, 1), (2.1, 1.0, 1)):
        chosen = ways(CompressionChoice(), 3 * AGAIN + 1, plain, compressed)
        assert chosen[: 2 * trials] == [False, True] * trials
        slower = [number for number, way in enumerate(chosen) if way != (compressed < plain)]
        assert slower[trials:] == [AGAIN, 2 * AGAIN, 3 * AGAIN]


def test_the_setting_decides_unless_it_is_auto() -> None:
    assert ways(CompressionChoice("always"), AGAIN + 1, plain=1.0, compressed=9.0) == [True] * (AGAIN + 1)
    assert ways(CompressionChoice("never"), AGAIN + 1, plain=9.0, compressed=1.0) == [False] * (AGAIN + 1)


def test_the_way_changes_with_the_network_and_not_with_one_slow_unroll() -> None:
    choice = CompressionChoice()
    ways(choice, 2 * TRIALS, plain=1.0, compressed=1.5)
    assert ways(choice, 1, plain=9.0, compressed=1.5) == [False]
    assert not any(ways(choice, 2, plain=1.0, compressed=1.5))
    assert ways(choice, 5, plain=9.0, compressed=1.5) == [False, False, True, True, True]
