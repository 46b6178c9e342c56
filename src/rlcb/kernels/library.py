"""Loads the native kernels and calls them: the interface between Python and convolutions.cpp.

Tensors are float32 and contiguous in memory order (images, rows, columns, channels) unless stated otherwise;
functions take their addresses. Every call releases the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_float, c_int, c_void_p
from pathlib import Path
from typing import Any

from rlcb.kernels.build import compiled_and_checked

CHANNEL_MULTIPLE = 16
"""All channels but those of observations are a multiple of this."""

PANEL_MULTIPLE = 32
"""The inputs and outputs of dense layers are a multiple of this."""


class Direct(ctypes.Structure):
    """The geometry of a direct convolution, as in convolutions.cpp."""

    _fields_ = [
        (name, c_int)
        for name in (
            *("height", "width", "channels", "pad", "kernel", "stride", "down", "across", "out_channels"),
            "bytes",
        )
    ]


class WinogradGeometry(ctypes.Structure):
    """The geometry of a convolution by Winograd's algorithm, as in convolutions.cpp."""

    point_stride: int
    _fields_ = [
        (name, c_int)
        for name in (
            *("height", "width", "channels", "block", "pad", "rectify", "bytes", "out_channels"),
            "point_stride",
        )
    ]


SIGNATURES: dict[str, list[Any]] = {
    "rlcb_lanes": [],
    "rlcb_winograd": [POINTER(WinogradGeometry)] + [c_void_p] * 6 + [c_int] * 2,
    "rlcb_winograd_gradients": [POINTER(WinogradGeometry)] + [c_void_p] * 7 + [c_int],
    "rlcb_winograd_filter": [POINTER(WinogradGeometry), c_void_p, c_float, c_void_p],
    "rlcb_winograd_transposed_filter": [POINTER(WinogradGeometry), c_void_p, c_void_p],
    "rlcb_winograd_filter_gradient": [POINTER(WinogradGeometry), c_void_p, c_float, c_void_p],
    "rlcb_convolve": [POINTER(Direct)] + [c_void_p] * 4 + [c_int],
    "rlcb_weights": [POINTER(Direct)] + [c_void_p] * 4 + [c_int],
    "rlcb_dense_panels": [c_void_p] * 2 + [c_int] * 2,
    "rlcb_dense": [c_void_p] * 5 + [c_int] * 3,
    "rlcb_dense_input_gradient": [c_void_p] * 3 + [c_int] * 3,
    "rlcb_dense_weight_gradient": [c_void_p] * 3 + [c_int] * 5,
    "rlcb_act": [c_void_p] * 9 + [c_int] * 3,
    "rlcb_max_pool": [c_void_p] * 3 + [c_int] * 4,
    "rlcb_max_pool_gradient": [c_void_p] * 3 + [c_int] * 4,
}


class Library:
    """The functions of a compiled convolutions.cpp; that file says what each does."""

    def __init__(self, path: Path) -> None:
        functions = ctypes.CDLL(str(path))
        for name, arguments in SIGNATURES.items():
            function = getattr(functions, name)
            function.argtypes, function.restype = arguments, c_int if name == "rlcb_lanes" else None
        self.lanes = int(functions.rlcb_lanes())
        """Floats in a vector register: 16 with AVX-512, 8 with AVX2, 4 with SSE and NEON."""
        self.winograd = functions.rlcb_winograd
        self.winograd_gradients = functions.rlcb_winograd_gradients
        self.winograd_filter = functions.rlcb_winograd_filter
        self.winograd_transposed_filter = functions.rlcb_winograd_transposed_filter
        self.winograd_filter_gradient = functions.rlcb_winograd_filter_gradient
        self.convolve = functions.rlcb_convolve
        self.weights = functions.rlcb_weights
        self.dense_panels = functions.rlcb_dense_panels
        self.dense = functions.rlcb_dense
        self.dense_input_gradient = functions.rlcb_dense_input_gradient
        self.dense_weight_gradient = functions.rlcb_dense_weight_gradient
        self.act = functions.rlcb_act
        self.max_pool = functions.rlcb_max_pool
        self.max_pool_gradient = functions.rlcb_max_pool_gradient


@functools.cache
def load() -> Library:
    """Return the kernels of this machine, after building and checking them at first use.

    Raises KernelsUnavailable with the reason if there are none.
    """
    return Library(compiled_and_checked())
