"""PowerSGD: equal to an independent computation, exact where it can be, and no gradient is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlcb.cluster.gradient_reduction import LowRankReduction
from rlcb.cluster.power_sgd import PowerSGD
from rlcb.cluster.summation import GroupSum
from rlcb.config.yaml_file import build_config
from rlcb.errors import UsageError
from rlcb.rl.communicator import Communicator

Array = NDArray[Any]
RunRanks = Callable[[int, Callable[[Communicator], Array]], list[Array]]

SHAPES = ((24, 30), (24,), (16, 4, 3, 3), (3, 5), (1, 40))
"""A dense layer and its bias, a convolution, a matrix too small to gain from a low rank, a value head."""
COMPRESSED = {0: (24, 30), 2: (16, 36)}
STATISTICS = 2


def parameters() -> list[torch.Tensor]:
    return [torch.zeros(shape) for shape in SHAPES]


SIZE = sum(each.numel() for each in parameters()) + STATISTICS


def vector_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * step + rank))


def gram_schmidt(p: Array) -> Array:
    columns: list[Array] = []
    for column in p.T:
        for other in columns:
            column = column - other * (other @ column)
        columns.append(column / np.sqrt(column @ column))
    return np.stack(columns, axis=1)


def expected_sums(ranks: int, steps: int, rank: int, q: dict[int, Array]) -> list[Array]:
    """Algorithms 1 and 2 of the paper in float64, from the first Q on, and plain sums of everything else."""
    ends = np.cumsum([0, *(np.prod(shape) for shape in SHAPES)])
    errors = {index: [np.zeros(shape) for _ in range(ranks)] for index, shape in COMPRESSED.items()}
    sums = []
    for step in range(steps):
        vectors = [vector_of(each, step).double().numpy() for each in range(ranks)]
        total = np.sum(vectors, axis=0)
        for index, shape in COMPRESSED.items():
            here = slice(ends[index], ends[index + 1])
            matrices = [vector[here].reshape(shape) + e for vector, e in zip(vectors, errors[index])]
            p = gram_schmidt(sum(m @ q[index] for m in matrices))
            q[index] = sum(m.T @ p for m in matrices)
            errors[index] = [m - p @ (p.T @ m) for m in matrices]
            total[here] = (p @ q[index].T).ravel()
        sums.append(total)
    return sums


@pytest.mark.parametrize(("ranks", "rank"), [(2, 2), (3, 2), (3, 1), (2, 4)])
def test_sums_equal_the_algorithm_of_the_paper(ranks: int, rank: int, run_ranks: RunRanks) -> None:
    steps = 5
    start = {}

    def work(communicator: Communicator) -> Array:
        power_sgd = PowerSGD(parameters(), rank, SIZE)
        assert [tuple(each.errors.shape) for each in power_sgd.matrices] == list(COMPRESSED.values())
        if communicator.is_main:
            start.update(
                {
                    i: m.q.T.double().numpy().copy()
                    for i, m in zip(COMPRESSED, power_sgd.matrices, strict=True)
                }
            )
        found = []
        for step in range(steps):
            vector = vector_of(communicator.rank, step)
            power_sgd.sum_with(vector, communicator.sum_)
            found.append(vector.numpy().copy())
        return np.stack(found)

    found = run_ranks(ranks, work)
    assert all((each == found[0]).all() for each in found)
    expected = expected_sums(ranks, steps, rank, start)
    for step in range(steps):
        assert abs(found[0][step] - expected[step]).max() < 2e-5


def test_a_gradient_of_low_rank_is_summed_exactly(run_ranks: RunRanks) -> None:
    generator = torch.Generator().manual_seed(7)
    thin = torch.randn(2, 24, 1, generator=generator)
    wide = torch.randn(2, 1, 30, generator=generator)

    def work(communicator: Communicator) -> Array:
        power_sgd = PowerSGD([torch.zeros(24, 30)], 2, 720)
        vector = (thin[communicator.rank] @ wide[communicator.rank]).flatten()  # rank 1
        power_sgd.sum_with(vector, communicator.sum_)
        assert power_sgd.errors.abs().max() < 1e-5
        return vector.numpy()

    expected = (thin @ wide).sum(0).flatten().numpy()
    for found in run_ranks(2, work):
        assert abs(found - expected).max() < 1e-5


def test_a_matrix_is_sent_whole_where_the_rank_is_full(run_ranks: RunRanks) -> None:
    """Of a 24 x 30 matrix, rank 7 takes 378 numbers, more than half of 720."""
    for rank, count in ((6, 1), (7, 0), (24, 0)):
        assert len(PowerSGD([torch.zeros(24, 30)], rank, 720).matrices) == count

    def work(communicator: Communicator) -> Array:
        power_sgd, vector = PowerSGD(parameters(), 24, SIZE), vector_of(communicator.rank, 0)
        power_sgd.sum_with(vector, communicator.sum_)
        return vector.numpy()

    expected = sum(vector_of(number, 0) for number in range(3)).numpy()
    for found in run_ranks(3, work):
        assert abs(found - expected).max() < 1e-5


def test_errors_are_fed_back_until_all_of_a_constant_gradient_has_been_applied(run_ranks: RunRanks) -> None:
    steps, ranks = 60, 2

    def work(communicator: Communicator) -> Array:
        power_sgd, applied = PowerSGD(parameters(), 2, SIZE), torch.zeros(steps, SIZE)
        for step in range(steps):
            applied[step] = vector_of(communicator.rank, 0)
            power_sgd.sum_with(applied[step], communicator.sum_)
        return applied.cumsum(0).numpy()

    applied = run_ranks(ranks, work)[0]
    gradient = sum(vector_of(number, 0) for number in range(ranks)).numpy()
    missing = [
        float(np.linalg.norm(applied[step] / (step + 1) - gradient) / np.linalg.norm(gradient))
        for step in range(steps)
    ]
    assert missing[0] > 0.5  # a matrix of random numbers has full rank: one sum has little of it
    assert missing[-1] < 0.15
    assert missing[-1] < 0.6 * missing[steps // 2 - 1]  # what is missing stays bounded: as 1 / steps


def test_each_error_is_what_the_sums_have_not_contained(run_ranks: RunRanks) -> None:
    """The errors of all ranks add up to the sum of gradients minus the sum of what was applied."""
    ends = np.cumsum([0, *(np.prod(shape) for shape in SHAPES)])

    def work(communicator: Communicator) -> Array:
        power_sgd, missing = PowerSGD(parameters(), 2, SIZE), torch.zeros(SIZE)
        for step in range(4):
            vector = vector_of(communicator.rank, step)
            missing += sum(vector_of(each, step) for each in range(3))
            power_sgd.sum_with(vector, communicator.sum_)
            missing -= vector
        errors = power_sgd.errors.clone()
        communicator.sum_(errors)
        left = torch.cat([missing[ends[index] : ends[index + 1]] for index in COMPRESSED])
        assert (errors - left).abs().max() < 1e-4
        assert errors.abs().max() > 1
        return errors.numpy()

    run_ranks(3, work)


def test_a_gradient_of_zeros_leaves_something_to_begin_with(run_ranks: RunRanks) -> None:
    def work(communicator: Communicator) -> Array:
        power_sgd = PowerSGD([torch.zeros(24, 30)], 2, 720)
        for _ in range(2):
            vector = torch.zeros(720)
            power_sgd.sum_with(vector, communicator.sum_)
            assert not vector.any()
        applied = torch.zeros(720)
        for _ in range(30):
            vector = torch.ones(720) * (communicator.rank + 1)
            power_sgd.sum_with(vector, communicator.sum_)
            applied += vector
        return applied.numpy()

    for found in run_ranks(2, work):
        assert found == pytest.approx(np.full(720, 30 * 3), rel=0.1)


def test_a_gradient_that_is_not_finite_is_not_hidden(run_ranks: RunRanks) -> None:
    def work(communicator: Communicator) -> Array:
        vector = vector_of(communicator.rank, 0)
        if communicator.rank:
            vector[5] = float("nan")
        PowerSGD(parameters(), 2, SIZE).sum_with(vector, communicator.sum_)
        return vector.numpy()

    for found in run_ranks(2, work):
        assert np.isnan(found).any()


def test_a_run_says_how_many_bytes_it_sends() -> None:
    whole = 24 + 15 + 40 + STATISTICS
    low_rank = 2 * (24 + 30) + 2 * (16 + 36)
    said = PowerSGD(parameters(), 2, SIZE).describe()
    assert (
        said == f"powersgd of rank 2: {4 * (whole + low_rank) / 1e3:.1f} instead of {4 * SIZE / 1e3:.1f} kB"
    )


def test_a_network_of_small_matrices_only_is_summed_exactly(run_ranks: RunRanks) -> None:
    def work(communicator: Communicator) -> Array:
        vector = torch.full((21,), 1.0 + communicator.rank)
        PowerSGD([torch.zeros(4, 5)], 2, 21).sum_with(vector, communicator.sum_)
        return vector.numpy()

    for found in run_ranks(2, work):
        assert (found == 3).all()


class Immediate:
    """Makes a sum in low rank at once, over ranks that are threads."""

    def __init__(self, communicator: Communicator, power_sgd: PowerSGD) -> None:
        self.communicator, self.power_sgd = communicator, power_sgd
        self.is_main, self.sum_ = communicator.is_main, communicator.sum_

    def begin_sum(self, tensor: torch.Tensor, between: GroupSum) -> None:
        assert between == self.power_sgd.sum_
        self.power_sgd.sum_with(tensor, self.sum_)

    def wait(self, work: Any) -> None: ...


def reduction_of(communicator: Communicator, sums: torch.Tensor) -> LowRankReduction:
    power_sgd = PowerSGD(parameters(), 2, SIZE)
    return LowRankReduction(Immediate(communicator, power_sgd), sums, power_sgd)


@pytest.mark.parametrize("whole", [True, False])
def test_a_resumed_run_continues_with_q_and_with_the_errors_of_all_ranks(
    whole: bool, run_ranks: RunRanks
) -> None:
    """`whole`: the run ended in order. Otherwise its checkpoint is an earlier copy, without the errors."""
    saved: dict[str, torch.Tensor] = {}

    def before(communicator: Communicator) -> Array:
        sums = torch.zeros(SIZE)
        reduction = reduction_of(communicator, sums)
        for step in range(6):
            if step == 3:
                if whole:
                    reduction.gather_state()
                if communicator.is_main:
                    saved.update({name: each.clone() for name, each in reduction.state().items()})
            sums.copy_(vector_of(communicator.rank, step))
            reduction.finish()
        assert set(reduction.state()) == {"q"}  # the errors of step 3 are those of no later step
        return sums.numpy()

    def after(communicator: Communicator) -> Array:
        sums = torch.zeros(SIZE)
        reduction = reduction_of(communicator, sums)
        reduction.load(saved)
        for step in range(3, 6):
            sums.copy_(vector_of(communicator.rank, step))
            reduction.finish()
        return sums.numpy()

    expected, found = run_ranks(3, before)[0], run_ranks(3, after)
    assert all((each == found[0]).all() for each in found)
    difference = abs(found[0] - expected).max()
    assert difference < 1e-4 if whole else difference > 0.1


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"compression": "powersgd", "overlap": True}, "cluster.overlap = true and cluster.compression = po"),
        ({"powersgd_rank": 2}, "cluster.powersgd_rank = 2 and cluster.compression = none: only powersgd has"),
        ({"powersgd_rank": 4, "compression": "bf16"}, "cluster.compression = bf16: only powersgd has a rank"),
        ({"powersgd_rank": 0, "compression": "powersgd"}, "cluster.powersgd_rank = 0: "),
        (
            {"average_every": 2, "compression": "powersgd"},
            "cluster.compression = powersgd: no gradient is se",
        ),
    ],
)
def test_settings_that_contradict_it_are_refused(cluster: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_config({"algorithm": "ppo", "mode": "distributed", "cluster": cluster}, "test")


def test_the_rank_is_part_of_a_run() -> None:
    def rank(**cluster: Any) -> int | None:
        data = {"algorithm": "ppo", "mode": "distributed", "cluster": cluster}
        return build_config(data, "test").cluster.powersgd_rank

    assert rank() is None
    assert rank(compression="powersgd") == 4
    assert rank(compression="powersgd", powersgd_rank=2) == 2
    with pytest.raises(UsageError, match="only the distributed mode"):
        build_config({"algorithm": "ppo", "cluster": {"compression": "powersgd"}}, "test")
