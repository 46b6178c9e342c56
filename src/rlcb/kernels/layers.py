"""Convolution layers on the native kernels: filters, a forward and two backward passes, for part of a batch.

Addresses are integers; 0 means "nothing". Tensors are float32, (images, rows, columns, channels).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcb.kernels.library import Direct, Library

_G = torch.tensor(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ],
    dtype=torch.float64,
)
FILTER_TRANSFORM = torch.kron(_G, _G).float()
"""Maps the 9 weights of a 3x3 filter to the 36 points of Winograd's F(4x4, 3x3)."""


class Winograd:
    """A 3x3 convolution with stride 1. All transformed filters of a network are columns of one matrix."""

    def __init__(
        self, library: Library, size: tuple[int, int], layer: nn.Conv2d, pad: int, column: int, rectify: bool
    ) -> None:
        """`size` is that of an input image. With `rectify`, the input is max(x, 0).

        The filter's C * K columns begin at `column`; `columns`, the number of all, is set by Filters.
        """
        self.convolve, self.weights = library.convolve_3x3, library.weights_3x3
        self.channels, self.out_channels = layer.in_channels, layer.out_channels
        self.size, self.pad, self.rectify = size, pad, int(rectify)
        self.out_size = (size[0] + 2 * pad - 2, size[1] + 2 * pad - 2)
        self.column, self.columns = column, 0

    def forward(self, x: int, filters: Tensor, bias: int, y: int, count: int, add: int = 0) -> None:
        """y = convolution(x) + bias, + `add` if given."""
        u = filters.data_ptr() + 4 * self.column
        self.convolve(
            *(x, u, bias, 0, add, y, count, *self.size, self.channels, self.out_channels),
            *(self.pad, self.rectify, self.columns),
        )

    def input_gradient(
        self, dy: int, filters: Tensor, dx: int, count: int, mask: int = 0, add: int = 0
    ) -> None:
        """dx = the gradient of the input, zero where mask <= 0, + `add`, with the filters of `backward`."""
        u = filters.data_ptr() + 4 * self.column
        self.convolve(
            *(dy, u, 0, mask, add, dx, count, *self.out_size, self.out_channels, self.channels),
            *(2 - self.pad, 0, self.columns),
        )

    def weight_gradient(self, x: int, dy: int, sums: int, bias_sums: int, count: int) -> None:
        """Add the gradients of the transformed filter and of the bias to the sums."""
        self.weights(
            *(x, dy, sums + 4 * self.column, bias_sums, count, *self.size, self.channels, self.out_channels),
            *(self.pad, self.rectify, self.columns),
        )


class Filters:
    """The transformed filters of a network's 3x3 convolutions, computed again only when weights changed."""

    def __init__(self, layers: Sequence[Winograd]) -> None:
        self.layers = layers
        self.columns = sum(layer.channels * layer.out_channels for layer in layers)
        for layer in layers:
            layer.columns = self.columns
        self._weights: Tensor | None = None
        self._forward = self._backward = torch.empty(0)

    def forward(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the filters (36, columns) of `weights` (K, C, 3, 3) for forward passes."""
        self._update(weights)
        if self._forward.numel() == 0:
            columns = [weight.permute(2, 3, 1, 0).reshape(9, -1) for weight in weights]
            self._forward = FILTER_TRANSFORM @ torch.cat(columns, 1)
        return self._forward

    def backward(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the filters (36, columns) with which the gradient of an output becomes that of the input."""
        self._update(weights)
        if self._backward.numel() == 0:
            columns = [weight.flip(2, 3).permute(2, 3, 0, 1).reshape(9, -1) for weight in weights]
            self._backward = FILTER_TRANSFORM @ torch.cat(columns, 1)
        return self._backward

    def gradients(self, sums: Tensor) -> list[Tensor]:
        """Return the gradients (K, C, 3, 3) of all weights from the sums (36, columns)."""
        gradients = FILTER_TRANSFORM.T @ sums
        return [
            gradients[:, layer.column : layer.column + layer.channels * layer.out_channels]
            .view(3, 3, layer.channels, layer.out_channels)
            .permute(3, 2, 0, 1)
            for layer in self.layers
        ]

    def _update(self, weights: Sequence[Tensor]) -> None:
        """Forget the filters if they are of other weights."""
        given = torch.cat([weight.detach().permute(0, 2, 3, 1).reshape(-1) for weight in weights])
        if self._weights is None or not torch.equal(given, self._weights):
            self._weights, self._forward, self._backward = given, torch.empty(0), torch.empty(0)


class DirectConvolution:
    """A convolution of any size and stride, without padding or, with stride 1, with any.

    The first layer of a network takes observations: float32, or with `is_bytes` uint8, which it divides by
    255. Others have an input gradient, for kernels that are a multiple of the stride.
    """

    def __init__(
        self,
        library: Library,
        size: tuple[int, int],
        layer: nn.Conv2d,
        is_bytes: bool = False,
    ) -> None:
        self.convolve, self.weights = library.convolve, library.weights
        self.channels, self.out_channels = layer.in_channels, layer.out_channels
        self.scale = 1 / 255 if is_bytes else 1.0
        self.kernel, self.stride, pad = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
        height, width = ((side + 2 * pad - self.kernel) // self.stride + 1 for side in size)
        self.size, self.out_size = size, (height, width)
        self.geometry = Direct(
            *(*size, self.channels, pad, self.kernel, self.stride),
            *(height, width, self.out_channels, height, width, 0, 0, 1, int(is_bytes)),
        )
        steps = range(0 if is_bytes or pad else self.stride)
        self.phases = [self._phase(row, column) for row in steps for column in steps]

    def _phase(self, first_row: int, first_column: int) -> tuple[int, int, Direct]:
        """Return the convolution of dy that gives every stride-th row and column of the input gradient.

        Its kernel has every stride-th weight, and its stride is 1. Begins with the row and column given.
        """
        kernel = self.kernel // self.stride
        down, across = (
            -(-(side - first) // self.stride)
            for side, first in zip(self.size, (first_row, first_column), strict=True)
        )
        return (
            first_row,
            first_column,
            Direct(
                *(*self.out_size, self.out_channels, kernel - 1, kernel, 1, down, across, self.channels),
                *(*self.size, first_row, first_column, self.stride, 0),
            ),
        )

    def filter(self, weight: Tensor) -> Tensor:
        """Return the filter (kernel, kernel, C, K) of the weights (K, C, kernel, kernel)."""
        filters = weight.detach().permute(2, 3, 1, 0).contiguous()
        return filters.mul_(self.scale) if self.scale != 1 else filters

    def forward(self, x: int, filters: Tensor, bias: int, y: int, count: int, rectify: bool) -> None:
        """y = convolution(x) + bias; max(y, 0) if `rectify`."""
        self.convolve(ctypes.byref(self.geometry), x, filters.data_ptr(), bias, 0, 0, y, count, int(rectify))

    def gradient_filters(self, weight: Tensor) -> list[Tensor]:
        """Return the filter (kernel / stride, kernel / stride, K, C) of each phase of the input gradient."""
        flipped = weight.detach().permute(2, 3, 0, 1)
        step = self.stride
        return [flipped[a::step, b::step].flip(0, 1).contiguous() for a, b, _ in self.phases]

    def input_gradient(self, dy: int, filters: Sequence[Tensor], dx: int, count: int, mask: int) -> None:
        """dx = the gradient of the input, zero where mask <= 0."""
        for (_, _, geometry), phase in zip(self.phases, filters, strict=True):
            self.convolve(ctypes.byref(geometry), dy, phase.data_ptr(), 0, mask, 0, dx, count, 0)

    def weight_gradient(self, x: int, dy: int, sums: int, bias_sums: int, count: int) -> None:
        """Add the gradients of the filter and of the bias to the sums."""
        self.weights(ctypes.byref(self.geometry), x, dy, sums, bias_sums, count)

    def gradient(self, sums: Tensor) -> Tensor:
        """Return the gradient (K, C, kernel, kernel) of the weights from the sums (kernel, kernel, C, K)."""
        return sums.mul_(self.scale).permute(3, 2, 0, 1)
