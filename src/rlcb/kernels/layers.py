"""Convolution layers on the native kernels: filters, a forward and two backward passes, for part of a batch.

Addresses are integers; 0 means "nothing". Tensors are float32, (images, rows, columns, channels).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcb.kernels.library import CHANNEL_MULTIPLE, Direct, Library, WinogradGeometry

POINTS = {3: 36, 2: 16}
"""Points of a tile by the size of the filter: of Winograd's F(4x4, 3x3) and F(3x3, 2x2)."""


class Winograd:
    """A convolution by Winograd's algorithm: 3x3 with stride 1, or without padding 2s x 2s with stride s.

    The second is a 2x2 convolution of blocks of s x s pixels. Its input may be an observation: float32, or
    with `is_bytes` uint8, which it divides by 255.
    """

    def __init__(
        self,
        library: Library,
        size: tuple[int, int],
        layer: nn.Conv2d,
        rectify: bool = False,
        is_bytes: bool = False,
    ) -> None:
        """`size` is that of an input image. With `rectify`, the input is max(x, 0)."""
        self._convolve, self._gradients = library.winograd, library.winograd_gradients
        self._filter, self._transposed_filter = library.winograd_filter, library.winograd_transposed_filter
        self._filter_gradient = library.winograd_filter_gradient
        self.channels, self.out_channels = layer.in_channels, layer.out_channels
        self.size, self.pad, self.block = size, int(layer.padding[0]), layer.stride[0]
        self.kernel = layer.kernel_size[0] // self.block
        """Blocks along each side of the filter."""
        self.columns = self.block**2 * self.channels * self.out_channels
        """Numbers in each point of the transformed filter."""
        self.scale = 1 / 255 if is_bytes else 1.0
        blocks = (side // self.block for side in size)
        height, width = (side + 2 * self.pad - self.kernel + 1 for side in blocks)
        self.out_size = (height, width)
        self.out_floats = height * width * self.out_channels
        self.geometry = WinogradGeometry(
            *(*size, self.channels, self.block, self.pad, int(rectify), int(is_bytes), self.out_channels)
        )
        self.flipped = WinogradGeometry(
            *(*self.out_size, self.out_channels, 1, 2 - self.pad, 0, 0, self.channels)
        )
        """The convolution that gives the input gradient of a convolution with padding."""
        self.column = 0

    def place(self, column: int, columns: int) -> None:
        """Set where this filter begins in the matrix (points, columns) of all filters (Filters)."""
        self.column = column
        self.geometry.point_stride = self.flipped.point_stride = columns

    def forward(
        self, x: int, filters: Tensor, bias: int, y: int, count: int, add: int = 0, rectify: bool = False
    ) -> None:
        """y = convolution(x) + bias, + `add` if given; max(y, 0) if `rectify`."""
        u = filters.data_ptr() + 4 * self.column
        self._convolve(ctypes.byref(self.geometry), x, u, bias, 0, add, y, count, int(rectify))

    def input_gradient(
        self, dy: int, filters: Tensor, dx: int, count: int, mask: int = 0, add: int = 0
    ) -> None:
        """dx = the gradient of the input, zero where mask <= 0, + `add`, with the filters of `backward`.

        Only for a convolution with padding: the gradient is a convolution of dy with the flipped filter.
        """
        u = filters.data_ptr() + 4 * self.column
        self._convolve(ctypes.byref(self.flipped), dy, u, 0, mask, add, dx, count, 0)

    def weight_gradient(self, x: int, dy: int, sums: Tensor, bias_sums: int, count: int) -> None:
        """Add the gradients of the transformed filter and of the bias to the sums."""
        at = sums.data_ptr() + 4 * self.column
        self._gradients(ctypes.byref(self.geometry), x, dy, at, bias_sums, 0, 0, 0, count)

    def gradients(
        self,
        x: int,
        dy: int,
        sums: Tensor,
        bias_sums: int,
        filters: Tensor,
        dx: int,
        count: int,
        mask: int = 0,
    ) -> None:
        """Compute all gradients of a convolution without padding, with the filters of `backward`.

        Adds to the sums; dx = the gradient of the input, zero where mask <= 0.
        """
        at, u = sums.data_ptr() + 4 * self.column, filters.data_ptr() + 4 * self.column
        self._gradients(ctypes.byref(self.geometry), x, dy, at, bias_sums, u, mask, dx, count)

    def write_filter(self, weight: Tensor, filters: Tensor) -> None:
        """Write the transformed filter for forward passes to its columns of all filters."""
        w, u = _in_order(weight), filters.data_ptr() + 4 * self.column
        self._filter(ctypes.byref(self.geometry), w.data_ptr(), self.scale, u)

    def write_transposed_filter(self, weight: Tensor, filters: Tensor) -> None:
        """Write the transformed filter that maps the gradient of the output to that of the input, if there is
        one: not for an observation."""
        if self.channels % CHANNEL_MULTIPLE == 0:
            w, u = _in_order(weight), filters.data_ptr() + 4 * self.column
            self._transposed_filter(ctypes.byref(self.geometry), w.data_ptr(), u)

    def gradient(self, sums: Tensor) -> Tensor:
        """Return the gradient of the weights from the sums (points, columns) of all filters.

        It has the memory order of the weights, channels_last.
        """
        side = self.kernel * self.block
        gradient = torch.empty(self.out_channels, side, side, self.channels)
        at = sums.data_ptr() + 4 * self.column
        self._filter_gradient(ctypes.byref(self.geometry), at, self.scale, gradient.data_ptr())
        return gradient.permute(0, 3, 1, 2)


def _in_order(weight: Tensor) -> Tensor:
    """Return weights (K, height, width, C), contiguous; those of a network are so in memory."""
    return weight.detach().permute(0, 2, 3, 1).contiguous()


class Filters:
    """The transformed filters of layers with one size of kernel, computed again only when weights changed.

    They are columns of one matrix (points, columns).
    """

    def __init__(self, layers: Sequence[Winograd]) -> None:
        self.layers = layers
        self.shape = (POINTS[layers[0].kernel], sum(layer.columns for layer in layers))
        column = 0
        for layer in layers:
            layer.place(column, self.shape[1])
            column += layer.columns
        self._weights: list[Tensor] = []
        self._forward = self._backward = torch.empty(0)

    def forward(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the filters for forward passes."""
        self._update(weights)
        if self._forward.numel() == 0:
            self._forward = torch.empty(self.shape)
            for layer, weight in zip(self.layers, weights, strict=True):
                layer.write_filter(weight, self._forward)
        return self._forward

    def backward(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the filters with which the gradient of an output becomes that of the input."""
        self._update(weights)
        if self._backward.numel() == 0:
            self._backward = torch.empty(self.shape)
            for layer, weight in zip(self.layers, weights, strict=True):
                layer.write_transposed_filter(weight, self._backward)
        return self._backward

    def gradients(self, sums: Tensor) -> list[Tensor]:
        """Return the gradients (K, C, height, width) of all weights from the sums (points, columns)."""
        return [layer.gradient(sums) for layer in self.layers]

    def _update(self, weights: Sequence[Tensor]) -> None:
        """Forget the filters if they are of other weights."""
        same = [_equal_bytes(old, new) for old, new in zip(self._weights, weights, strict=False)]
        if len(same) < len(weights) or not all(same):
            self._weights = [weight.detach().clone() for weight in weights]
            self._forward = self._backward = torch.empty(0)


_compare_memory = ctypes.CDLL(None).memcmp
_compare_memory.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def _equal_bytes(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors without gaps have equal memory. torch.equal takes three times as long."""
    size = one.numel() * one.element_size()
    same_order = one.shape == other.shape and one.stride() == other.stride()
    return same_order and _compare_memory(one.data_ptr(), other.data_ptr(), size) == 0


class DirectConvolution:
    """A convolution of any size and stride, without padding or, with stride 1, with any.

    Its input is an observation: float32, or with `is_bytes` uint8, which it divides by 255. It has no input
    gradient.
    """

    def __init__(
        self, library: Library, size: tuple[int, int], layer: nn.Conv2d, is_bytes: bool = False
    ) -> None:
        self._convolve, self._weights = library.convolve, library.weights
        self.channels, self.out_channels = layer.in_channels, layer.out_channels
        self.scale = 1 / 255 if is_bytes else 1.0
        self.kernel, stride, pad = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
        height, width = ((side + 2 * pad - self.kernel) // stride + 1 for side in size)
        self.out_size = (height, width)
        self.geometry = Direct(
            *(*size, self.channels, pad, self.kernel, stride, height, width, self.out_channels, int(is_bytes))
        )

    def filter(self, weight: Tensor) -> Tensor:
        """Return the filter (kernel, kernel, C, K) of the weights (K, C, kernel, kernel)."""
        filters = weight.detach().permute(2, 3, 1, 0).contiguous()
        return filters.mul_(self.scale) if self.scale != 1 else filters

    def forward(self, x: int, filters: Tensor, bias: int, y: int, count: int) -> None:
        """y = convolution(x) + bias."""
        self._convolve(ctypes.byref(self.geometry), x, filters.data_ptr(), bias, y, count)

    def weight_gradient(self, x: int, dy: int, sums: int, bias_sums: int, count: int) -> None:
        """Add the gradients of the filter and of the bias to the sums."""
        self._weights(ctypes.byref(self.geometry), x, dy, sums, bias_sums, count)

    def gradient(self, sums: Tensor) -> Tensor:
        """Return the gradient (K, C, kernel, kernel) of the weights from the sums (kernel, kernel, C, K)."""
        return sums.mul_(self.scale).permute(3, 2, 0, 1)
