"""Several arrays in one block of memory, whoever owns it: private, shared or a mapped file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Layout = dict[str, tuple[tuple[int, ...], "np.dtype[Any]"]]
"""Name -> (shape, dtype), in the order of memory."""

ALIGNMENT = 64  # a cache line


def _aligned_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT


def layout_bytes(layout: Layout) -> int:
    """Bytes that the arrays take, each beginning at a cache line."""
    return sum(_aligned_bytes(shape, dtype) for shape, dtype in layout.values())


def carve(layout: Layout, memory: Any) -> dict[str, NDArray[Any]]:
    """The arrays of a layout as views of `memory`, a writable buffer of at least `layout_bytes` bytes."""
    arrays: dict[str, NDArray[Any]] = {}
    offset = 0
    for name, (shape, dtype) in layout.items():
        arrays[name] = np.ndarray(shape, dtype, memory, offset)
        offset += _aligned_bytes(shape, dtype)
    return arrays
