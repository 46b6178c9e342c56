"""The features of a batch of images on the native kernels, as an operation that autograd can run backward."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
        self._filters: list[Tensor] | None = None

    @contextmanager
    def constant_weights(self) -> Iterator[None]:
        """Within this context the weights must stay as they are. They are not compared at every pass."""
        self._filters = self.network.prepare()
        try:
            yield
        finally:
            self._filters = None

    def filters(self) -> list[Tensor]:
        """Return the filters for forward passes."""
        return self.network.prepare() if self._filters is None else self._filters

    def __call__(self, observations: Tensor) -> Tensor:
        observations = observations.contiguous()
        if torch.is_grad_enabled():
            return F.relu(_Convolutions.apply(self, observations, *self.parameters()))  # type: ignore[no-untyped-call]
        out = torch.empty(len(observations), self.network.out_features)
        self.forward(observations, self.filters(), None, 0, out)
        return F.relu(out, inplace=True)

    def forward(
        self, observations: Tensor, filters: list[Tensor], kept: list[Tensor] | None, slot: int, out: Tensor
    ) -> None:
        """Write the output (B, F) of the last convolution to `out`, and activations to `kept`, if given, from
        image `slot` on."""
        network = self.network

        def part(worker: int, start: int, count: int) -> None:
            place, at = (self._activations(), 0) if kept is None else (kept, slot + start)
            network.forward(address(observations, start), filters, place, at, address(out, start), count)

        self._for_parts(len(observations), part)

    def backward(
        self,
        batches: Sequence[Tensor],
        kept: list[Tensor],
        gradient: Tensor,
        heartbeat: Callable[[], None] | None = None,
    ) -> list[Tensor]:
        """Return the gradients of weight, bias, weight, bias, ... for that of the output of all batches of
        observations, (sum of B, F). `heartbeat` is called before each batch."""
        network, filters = self.network, self.network.prepare_backward()
        gradient = gradient.contiguous()
        sums: list[Sums | None] = [None] * torch.get_num_threads()
        slot = 0
        for observations in batches:
            if heartbeat is not None:
                heartbeat()

            def part(
                worker: int, start: int, count: int, batch: Tensor = observations, slot: int = slot
            ) -> None:
                own = sums[worker]
                if own is None:
                    own = sums[worker] = network.sums()
                at = slot + start
                network.backward(address(batch, start), filters, kept, at, address(gradient, at), own, count)

            self._for_parts(len(observations), part)
            slot += len(observations)
        total, *others = [each for each in sums if each is not None] or [network.sums()]
        for other in others:
            total.add(other)
        return network.gradients(total)

    def parameters(self) -> list[Tensor]:
        """Return weight, bias, weight, bias, ... of all layers in order."""
        pairs = [(module.weight, module.bias) for module in self.network.modules]
        return [each for pair in pairs for each in pair if each is not None]

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
        network = features.network
        kept = network.activations(len(observations))
        out = torch.empty(len(observations), network.out_features)
        features.forward(observations, features.filters(), kept, 0, out)
        ctx.features = features
        ctx.save_for_backward(observations, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        observations, *kept = ctx.saved_tensors
        return None, None, *ctx.features.backward([observations], kept, gradients[0])


class NativePasses:
    """Forward passes of several batches, whose activations are kept for one backward pass through all.

    One backward pass for each batch would transform the filters' gradients each time.
    """

    def __init__(self, features: NativeFeatures, images: int, heartbeat: Callable[[], None]) -> None:
        """Reserve memory for so many images. `heartbeat` is called before each batch of a backward pass."""
        self.native, self.heartbeat = features, heartbeat
        self.kept = features.network.activations(images)
        self.out = torch.empty(images, features.network.out_features)
        self.filters: list[Tensor] = []
        self.batches: list[Tensor] = []

    def forward(self, observations: Tensor) -> Tensor:
        """Return the features (B, F) of the next batch. Observations and weights must stay as they are until
        the backward pass."""
        slot = sum(map(len, self.batches))
        if not self.batches:
            self.filters = self.native.filters()
        out = self.out[slot : slot + len(observations)]
        self.batches.append(observations.contiguous())
        self.native.forward(self.batches[-1], self.filters, self.kept, slot, out)
        return F.relu(out, inplace=True)

    def features(self) -> Tensor:
        """Return the features of all batches, without a graph."""
        return self.out[: sum(map(len, self.batches))]

    def backward(self, gradient: Tensor) -> None:
        """Add to the gradients of all weights, given that of all features, and forget the batches."""
        out = _KeptConvolutions.apply(self, *self.native.parameters())  # type: ignore[no-untyped-call]
        backpropagate(out, gradient)
        self.batches = []


class _KeptConvolutions(torch.autograd.Function):
    """The features of all batches. Autograd only adds the gradients, and calls the hooks of the weights."""

    @staticmethod
    def forward(ctx: Any, passes: NativePasses, *parameters: Tensor) -> Tensor:
        ctx.passes = passes
        return passes.features()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        passes = ctx.passes
        gradient = gradients[0] * (passes.features() > 0)
        return None, *passes.native.backward(passes.batches, passes.kept, gradient, passes.heartbeat)


def backpropagate(output: Tensor, gradient: Tensor) -> None:
    """Run backward from an output with its gradient.

    The gradient of a sum of products is the other factor. To pass it to torch.autograd.backward would load
    sympy, for 0.4 s of CPU time in each process.
    """
    (output * gradient).sum().backward()  # type: ignore[no-untyped-call]
