"""Ways to sum gradients over a network that is slow beside the computing.

Compression sends each number with fewer bits. Overlap sends the gradients of the last layers, which the
backward pass computes first, while it is still computing the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from rlcb.rl.communicator import Communicator, Reduction

BUCKET_BYTES = 1 << 20  # below it the latency of an all-reduce outweighs its transfer


class AsyncCommunicator(Protocol):
    """A communicator whose operations can go on while the process computes."""

    def begin(self, operation: Any, *arguments: Any, **options: Any) -> Any: ...

    def wait(self, work: Any) -> None: ...


class CompressedReduction(Reduction):
    """The gradient travels, and is summed, as bfloat16: 8 bits of mantissa and the range of float32.

    Every rank gets the same rounded sum. The statistics behind the gradient are summed exactly.
    """

    def __init__(self, communicator: Communicator, sums: torch.Tensor, size: int) -> None:
        super().__init__(communicator, sums)
        self.gradient, self.statistics = sums[:size], sums[size:]
        self.small = torch.empty(size, dtype=torch.bfloat16)

    def finish(self) -> None:
        self.small.copy_(self.gradient)
        self.communicator.sum_(self.small)
        self.gradient.copy_(self.small)
        self.communicator.sum_(self.statistics)


class BucketReduction(Reduction):
    """Sums the gradient in buckets of consecutive parameters, from the last to the first, each as soon as it
    is complete.

    Ranks sum the same buckets in the same order whatever the order in which their gradients come.
    """

    def __init__(
        self, communicator: Any, sums: torch.Tensor, parameters: Sequence[torch.Tensor], compression: str
    ) -> None:
        super().__init__(communicator, sums)
        self.async_communicator: AsyncCommunicator = communicator
        self.compress = compression == "bf16"
        self.buckets = buckets_of([each.numel() for each in parameters])
        """(first parameter, first number, last number + 1) of each bucket, in the order of sending."""
        self.missing: list[int] = []
        """How many gradients each bucket still lacks; empty when no last backward pass is on."""
        self.works: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
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
        part = self.sums[start:end]
        sent = part.to(torch.bfloat16) if self.compress else part
        self.works.append((self.async_communicator.begin(dist.all_reduce, sent), sent, part))

    def finish(self) -> None:
        self.missing = []
        while len(self.works) < len(self.buckets):
            self._send(len(self.works))
        last = self.async_communicator.begin(dist.all_reduce, self.statistics)
        for work, sent, part in self.works:
            self.async_communicator.wait(work)
            if self.compress:
                part.copy_(sent)
        self.works = []
        self.async_communicator.wait(last)


def buckets_of(sizes: Sequence[int], bucket_bytes: int = BUCKET_BYTES) -> list[tuple[int, int, int]]:
    """Buckets of consecutive parameters of `sizes` numbers, from the last to the first, none but the last
    below `bucket_bytes`: (first parameter, first number, last number + 1)."""
    end = start = sum(sizes)
    buckets = []
    for index in range(len(sizes) - 1, -1, -1):
        start -= sizes[index]
        if 4 * (end - start) >= bucket_bytes or index == 0:
            buckets.append((index, start, end))
            end = start
    return buckets
