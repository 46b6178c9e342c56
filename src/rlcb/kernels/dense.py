"""The dense layer behind the convolutions on the native kernels, forward and backward.

PyTorch's float32 products, by MKL, reach half the speed of these kernels on an AMD EPYC with AVX-512.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rlcb.kernels.library import PANEL_MULTIPLE, Library
from rlcb.kernels.threads import Threads


class NativeDense:
    """Maps features (B, F) to max(W x + b, 0) (B, H), for W and b of a torch layer."""

    def __init__(self, library: Library, layer: nn.Linear) -> None:
        self.library, self.layer = library, layer
        self.threads = Threads()
        self._panels: Tensor | None = None

    @staticmethod
    def supports(layer: nn.Linear) -> bool:
        """Return whether the kernels can compute a layer."""
        return layer.in_features % PANEL_MULTIPLE == 0 and layer.out_features % PANEL_MULTIPLE == 0

    @contextmanager
    def constant_weights(self) -> Iterator[None]:
        """Within this context the weights must stay as they are. They are put in the kernels' order once."""
        weight = self.layer.weight
        self._panels = torch.empty(weight.shape)
        self.library.dense_panels(weight.data_ptr(), self._panels.data_ptr(), weight.shape[1], len(weight))
        try:
            yield
        finally:
            self._panels = None

    def __call__(self, features: Tensor) -> Tensor:
        features = features.contiguous()
        if torch.is_grad_enabled():
            weight, bias = self.layer.weight, self.layer.bias
            return _Dense.apply(self, features, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
        return self.forward(features)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (B, H)."""
        layer, y = self.layer, torch.empty(len(x), self.layer.out_features)
        panels = None if self._panels is None else self._panels.data_ptr()

        def part(first: int, count: int) -> None:
            self.library.dense(
                *(_row(x, first), layer.weight.data_ptr(), panels, layer.bias.data_ptr(), _row(y, first)),
                *(count, layer.in_features, layer.out_features),
            )

        self._for_parts(len(x), part)
        return y

    def backward(self, x: Tensor, y: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of input, weight and bias for that of the output y (B, H)."""
        layer = self.layer
        gradient = gradient * (y > 0)
        dx, dw = torch.empty_like(x), torch.empty(layer.out_features, layer.in_features)

        def inputs(first: int, count: int) -> None:
            self.library.dense_input_gradient(
                *(_row(gradient, first), layer.weight.data_ptr(), _row(dx, first)),
                *(count, layer.in_features, layer.out_features),
            )

        def weights(first: int, count: int) -> None:
            self.library.dense_weight_gradient(
                *(x.data_ptr(), gradient.data_ptr(), _row(dw, first), len(x)),
                *(layer.in_features, layer.out_features, first, count),
            )

        self._for_parts(len(x), inputs)
        self._for_parts(layer.out_features, weights)
        return dx, dw, gradient.sum(0)

    def _for_parts(self, rows: int, work: Callable[[int, int], None]) -> None:
        """Call work(first, count) for all rows, in one part for each thread."""
        workers = torch.get_num_threads()
        size = -(-rows // (workers * PANEL_MULTIPLE)) * PANEL_MULTIPLE
        tasks = -(-rows // size) if rows else 0
        self.threads.run(tasks, lambda _, task: work(task * size, min(size, rows - task * size)))


def _row(matrix: Tensor, row: int) -> int:
    """Return the address of a row of a contiguous float32 matrix."""
    return matrix.data_ptr() + 4 * row * matrix.shape[1]


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: NativeDense, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = dense.forward(x)
        ctx.dense = dense
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        return None, *ctx.dense.backward(x, y, gradients[0])
