"""Sums of gradients in buckets, while others are being computed, and with fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlcb.cluster.communicator import ClusterCommunicator
from rlcb.cluster.gradient_reduction import BucketReduction, CompressedReduction, buckets_of
from rlcb.cluster.summation import GroupSum, all_reduce_, sum_compressed_
from rlcb.errors import RunError
from rlcb.rl.communicator import Communicator

SIZES = (300_000, 40, 270_000, 7)


class Immediate:
    """Does at once what a communicator of threads can only do at once; a compressed number is rounded before
    and after the sum."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator

    def begin_sum(self, tensor: torch.Tensor, between: GroupSum = all_reduce_) -> None:
        if between is all_reduce_:
            self.communicator.sum_(tensor)
            return
        assert between is sum_compressed_
        rounded = tensor.to(torch.bfloat16).float()
        tensor.copy_(self.communicator.sum_(rounded).to(torch.bfloat16))

    def wait(self, work: Any) -> None: ...


def model_of(rank: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Parameters whose gradients are views of one vector with two statistics behind it, and that vector."""
    sums = torch.zeros(sum(SIZES) + 2)
    parameters, offset = [], 0
    for size in SIZES:
        parameter = torch.full((size,), 0.5, requires_grad=True)
        parameter.grad = sums[offset : offset + size]
        parameters.append(parameter)
        offset += size
    generator = torch.Generator().manual_seed(rank)
    return parameters, sums, torch.randn(sum(SIZES), generator=generator)


def expected() -> torch.Tensor:
    return model_of(0)[2] + model_of(1)[2]


def backward(parameters: list[torch.Tensor], gradient: torch.Tensor, order: list[int]) -> None:
    """Accumulate a gradient, parameter by parameter in some order, as a backward pass does."""
    parts = gradient.split(SIZES)
    for index in order:
        (parameters[index] * parts[index]).sum().backward()


@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_buckets_give_the_sum_whatever_the_order_in_which_gradients_come(
    run_ranks: Callable[..., list[torch.Tensor]], compression: str
) -> None:
    def work(communicator: Communicator) -> torch.Tensor:
        parameters, sums, gradient = model_of(communicator.rank)
        reduction = BucketReduction(Immediate(communicator), sums, parameters, compression)
        for _ in range(2):  # the second minibatch as well
            sums.zero_()
            backward(parameters, gradient * 0.25, [3, 2, 1, 0])  # a microbatch that is not the last
            sums[-2:] += torch.tensor([1.0, 2.0])
            reduction.begin()
            backward(parameters, gradient * 0.75, [[3, 2, 1, 0], [0, 2, 3, 1]][communicator.rank])
            reduction.finish()
        return sums.clone()

    first, second = run_ranks(2, work)
    assert torch.equal(first, second)
    tolerance = 1e-6 if compression == "none" else 2**-7 * float(expected().abs().max())
    torch.testing.assert_close(first[:-2], expected(), atol=tolerance, rtol=0)
    assert first[-2:].tolist() == [2.0, 4.0]


def test_a_rank_without_samples_takes_part(run_ranks: Callable[..., list[torch.Tensor]]) -> None:
    def work(communicator: Communicator) -> torch.Tensor:
        parameters, sums, gradient = model_of(communicator.rank)
        reduction = BucketReduction(Immediate(communicator), sums, parameters, "none")
        if communicator.rank == 1:
            reduction.begin()
            backward(parameters, gradient, [3, 2, 1, 0])
        reduction.finish()
        return sums.clone()

    for sums in run_ranks(2, work):
        torch.testing.assert_close(sums[:-2], model_of(1)[2])


def test_buckets_are_sent_before_the_backward_pass_ends() -> None:
    sent: list[int] = []

    class Recorder:
        def begin_sum(self, tensor: torch.Tensor, between: GroupSum = all_reduce_) -> None:
            sent.append(len(tensor))

        def wait(self, work: Any) -> None: ...

    parameters, sums, gradient = model_of(0)
    reduction = BucketReduction(Recorder(), sums, parameters, "none")
    reduction.begin()
    backward(parameters, gradient, [3, 2])
    assert sent == [270_007]
    backward(parameters, gradient, [1, 0])
    assert sent == [270_007, 300_040]
    reduction.finish()
    assert sent == [270_007, 300_040, 2]


def test_compression_rounds_the_gradient_to_8_bits_and_the_statistics_not_at_all(
    run_ranks: Callable[..., list[torch.Tensor]],
) -> None:
    def work(communicator: Communicator) -> torch.Tensor:
        _, sums, gradient = model_of(communicator.rank)
        sums[:-2] = gradient
        sums[-2:] = torch.tensor([1 / 3, 1e-9])
        CompressedReduction(Immediate(communicator), sums, len(gradient)).finish()
        return sums.clone()

    first, second = run_ranks(2, work)
    assert torch.equal(first, second)
    assert torch.equal(first[-2:], 2 * torch.tensor([1 / 3, 1e-9]))
    error = (first[:-2] - expected()).norm() / expected().norm()
    assert 1e-5 < error < 2**-8


def test_buckets_cover_every_number_once_from_the_last_to_the_first() -> None:
    buckets = buckets_of(SIZES, bucket_bytes=4 * 100)
    assert buckets == [(2, 300_040, 570_047), (0, 0, 300_040)]
    assert buckets_of((5,), bucket_bytes=400) == [(0, 0, 5)]


class Pair(ClusterCommunicator):
    """Two ranks that are threads."""

    def __init__(self, communicator: Communicator) -> None:
        self.rank, self.world_size, self.names = communicator.rank, 2, ("rank 0 on a", "rank 1 on b")
        self.communicator = communicator

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.communicator.sum_(tensor)

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.communicator.sum_(tensor if self.is_main else tensor.zero_())


def test_ranks_that_differ_by_rounding_go_on_with_rank_0s_parameters(
    run_ranks: Callable[..., list[torch.Tensor]],
) -> None:
    def work(communicator: Communicator) -> torch.Tensor:
        parameters = torch.full((5,), 1.0 + 1e-6 * communicator.rank)
        Pair(communicator).require_equal(parameters, "the parameters")
        return parameters

    assert all(torch.equal(parameters, torch.ones(5)) for parameters in run_ranks(2, work))


@pytest.mark.parametrize("difference", [0.1, float("nan")])
def test_ranks_that_really_differ_end_the_run_by_name(
    run_ranks: Callable[..., list[str]], difference: float
) -> None:
    def work(communicator: Communicator) -> str:
        parameters = torch.ones(5)
        if communicator.rank == 1:
            parameters[3] += difference
        with pytest.raises(RunError) as refused:
            Pair(communicator).require_equal(parameters, "the parameters")
        return str(refused.value)

    for text in run_ranks(2, work):
        assert text.startswith("the parameters of rank 1 on b differ from those of rank 0 by ")
