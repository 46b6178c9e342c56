"""Ways to sum gradients faster over a slow network (another one: summation.py).

Compression (`cluster.compression`) sends each number with fewer bits, or matrices in low rank (power_sgd.py).
Overlap (`cluster.overlap`) sends the gradients of the last layers, which the backward pass computes first,
while it computes the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from rlcb.cluster.power_sgd import PowerSGD
from rlcb.cluster.summation import GroupSum, all_reduce_, sum_compressed_
from rlcb.rl.communicator import Reduction

BUCKET_BYTES = 1 << 20  # in a smaller bucket, latency outweighs the transfer


class AsyncCommunicator(Protocol):
    """A communicator whose operations can be started, and awaited later: a ClusterCommunicator."""

    def begin_sum(self, tensor: torch.Tensor, between: GroupSum = all_reduce_) -> Any:
        """Start the sum of a tensor over all ranks, in place, and return its handle. `between` makes the part
        of the sum that crosses nodes."""

    def wait(self, work: Any) -> None:
        """Wait until the operation with this handle is done."""


class CompressedReduction(Reduction):
    """Sends the gradient as bfloat16 (8 bits of mantissa, the range of float32), statistics as float32.

    Every rank gets the same rounded sum.
    """

    def __init__(self, communicator: Any, sums: torch.Tensor, size: int) -> None:
        """`sums` holds `size` numbers of the gradient, then the statistics."""
        super().__init__(communicator, sums)
        self.async_communicator: AsyncCommunicator = communicator
        self.gradient, self.statistics = sums[:size], sums[size:]

    def finish(self) -> None:
        for part, between in ((self.gradient, sum_compressed_), (self.statistics, all_reduce_)):
            self.async_communicator.wait(self.async_communicator.begin_sum(part, between))


class LowRankReduction(Reduction):
    """Sums the gradient with PowerSGD; vectors, small matrices and statistics as float32."""

    def __init__(self, communicator: Any, sums: torch.Tensor, power_sgd: PowerSGD) -> None:
        super().__init__(communicator, sums)
        self.async_communicator: AsyncCommunicator = communicator
        self.power_sgd = power_sgd
        self._errors: torch.Tensor | None = None
        """The sum of all ranks' errors, if no gradient has been summed since it was computed."""

    def finish(self) -> None:
        self._errors = None
        self.async_communicator.wait(self.async_communicator.begin_sum(self.sums, self.power_sgd.sum_))

    def gather_state(self) -> None:
        # Later sums depend on the errors only through their sum, so one vector is enough for all ranks.
        self._errors = self.communicator.sum_(self.power_sgd.errors.clone())

    def state(self) -> dict[str, torch.Tensor]:
        state = {"q": self.power_sgd.q}
        return state if self._errors is None else {**state, "errors": self._errors}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        self.power_sgd.q.copy_(state["q"])
        if "errors" in state and self.communicator.is_main:
            self.power_sgd.errors.copy_(state["errors"])


class BucketReduction(Reduction):
    """Sums the gradient in buckets of consecutive parameters, each as soon as the backward pass completes it.

    All ranks sum the same buckets in the same order, last parameters first, even if their gradients are
    computed in another order. The sums equal those of one all-reduce up to floating-point error.
    """

    def __init__(
        self, communicator: Any, sums: torch.Tensor, parameters: Sequence[torch.Tensor], compression: str
    ) -> None:
        super().__init__(communicator, sums)
        self.async_communicator: AsyncCommunicator = communicator
        self.between: GroupSum = sum_compressed_ if compression == "bf16" else all_reduce_
        self.buckets = buckets_of([each.numel() for each in parameters])
        """(first parameter, start, end in `sums`) of each bucket, in the order of sending."""
        self.missing: list[int] = []
        """Gradients that each bucket still lacks; empty outside the last backward pass of a minibatch."""
        self.works: list[Any] = []
        """The handle of each bucket that has been sent."""
        size = self.buckets[0][2]
        self.statistics = sums[size:]
        self._bucket_of = [
            next(i for i, bucket in enumerate(self.buckets) if index >= bucket[0])
            for index in range(len(parameters))
        ]
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, index=index: self._arrived(index)
            )

    def begin(self) -> None:
        self.missing = [self._bucket_of.count(bucket) for bucket in range(len(self.buckets))]

    def _arrived(self, index: int) -> None:
        if not self.missing:
            return
        self.missing[self._bucket_of[index]] -= 1
        while len(self.works) < len(self.buckets) and self.missing[len(self.works)] == 0:
            self._send(len(self.works))

    def _send(self, bucket: int) -> None:
        _, start, end = self.buckets[bucket]
        self.works.append(self.async_communicator.begin_sum(self.sums[start:end], self.between))

    def finish(self) -> None:
        self.missing = []
        while len(self.works) < len(self.buckets):
            self._send(len(self.works))
        last = self.async_communicator.begin_sum(self.statistics)
        for work in (*self.works, last):
            self.async_communicator.wait(work)
        self.works = []


def buckets_of(sizes: Sequence[int], bucket_bytes: int = BUCKET_BYTES) -> list[tuple[int, int, int]]:
    """Divide parameters with `sizes` float32 numbers into buckets of at least `bucket_bytes`, last to first.

    Returns (first parameter, start, end) of each bucket, with positions in the vector of all parameters. The
    last bucket may be smaller.
    """
    end = start = sum(sizes)
    buckets = []
    for index in range(len(sizes) - 1, -1, -1):
        start -= sizes[index]
        if 4 * (end - start) >= bucket_bytes or index == 0:
            buckets.append((index, start, end))
            end = start
    return buckets
