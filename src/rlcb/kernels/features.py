"""The features of a batch of images on the native kernels, as an operation that autograd can run backward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcb.kernels.networks import Network, Sums, address
from rlcb.kernels.threads import Threads


class NativeFeatures:
    """Maps observations (B, H, W, C), uint8 or float32, to features (B, F): a network's convolutions and the
    last rectifier.

    Uses as many threads as torch does (torch.set_num_threads).
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._local = threading.local()
        self._threads = Threads()

    def __call__(self, observations: Tensor) -> Tensor:
        observations = observations.contiguous()
        if torch.is_grad_enabled():
            parameters = [p for module in self.network.modules for p in (module.weight, module.bias)]
            return F.relu(_Convolutions.apply(self, observations, *parameters))  # type: ignore[no-untyped-call]
        return F.relu(self.forward(observations, None), inplace=True)

    def forward(self, observations: Tensor, kept: list[Tensor] | None) -> Tensor:
        """Return the output (B, F) of the last convolution; activations go to `kept`, if given."""
        network, filters = self.network, self.network.prepare()
        out = torch.empty(len(observations), network.out_features)

        def part(worker: int, start: int, count: int) -> None:
            place, slot = (self._activations(), 0) if kept is None else (kept, start)
            x = address(observations, start)
            network.forward(x, filters, place, slot, address(out, start), count)

        self._for_parts(len(observations), part)
        return out

    def backward(self, observations: Tensor, kept: list[Tensor], gradient: Tensor) -> list[Tensor]:
        """Return the gradients of weight, bias, weight, bias, ... for that of the output (B, F)."""
        network, filters = self.network, self.network.prepare_backward()
        gradient = gradient.contiguous()
        sums: list[Sums | None] = [None] * torch.get_num_threads()

        def part(worker: int, start: int, count: int) -> None:
            own = sums[worker]
            if own is None:
                own = sums[worker] = network.sums()
            x = address(observations, start)
            network.backward(x, filters, kept, start, address(gradient, start), own, count)

        self._for_parts(len(observations), part)
        total, *others = [each for each in sums if each is not None] or [network.sums()]
        for other in others:
            total.add(other)
        return network.gradients(total)

    def _activations(self) -> list[Tensor]:
        """Return this thread's memory for the activations of passes without gradients."""
        if not hasattr(self._local, "activations"):
            self._local.activations = self.network.activations(self.network.images)
        return self._local.activations  # type: ignore[no-any-return]

    def _for_parts(self, images: int, run: Callable[[int, int, int], None]) -> None:
        """Call run(worker, start, count) for all parts of the batch."""
        workers = min(torch.get_num_threads(), images)
        size = min(self.network.images, -(-images // workers)) if workers else 1

        def work(worker: int, part: int) -> None:
            run(worker, part * size, min(size, images - part * size))

        self._threads.run(-(-images // size), work)


class _Convolutions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: NativeFeatures, observations: Tensor, *parameters: Tensor) -> Tensor:
        kept = features.network.activations(len(observations))
        out = features.forward(observations, kept)
        ctx.features = features
        ctx.save_for_backward(observations, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        observations, *kept = ctx.saved_tensors
        return None, None, *ctx.features.backward(observations, kept, gradients[0])
