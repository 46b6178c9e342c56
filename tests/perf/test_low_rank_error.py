"""What sums in low rank miss is reported against the gradient itself, which stays as it is."""

from __future__ import annotations

import pytest
import torch

from perf.low_rank_error import RANKS, ShadowReduction, table
from rlcb.rl.communicator import Communicator

SHAPE = (40, 50)


def test_the_gradient_stays_and_a_matrix_of_rank_2_is_missed_by_rank_1_only() -> None:
    generator = torch.Generator().manual_seed(5)
    left, _ = torch.linalg.qr(torch.randn(40, 2, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(50, 2, generator=generator))
    matrix = 4 * torch.outer(left[:, 0], right[:, 0]) + 3 * torch.outer(left[:, 1], right[:, 1])
    sums = matrix.flatten().clone()
    shadow = ShadowReduction(Communicator(), sums, [torch.zeros(SHAPE)])
    shadow.finish()
    assert torch.equal(sums, matrix.flatten())
    for rank in RANKS[1:]:
        assert shadow.misses[rank].cosine[0] == pytest.approx(1, abs=1e-4)
        assert shadow.misses[rank].missed[0] < 1e-3
    (missed,), (cosine,) = shadow.misses[1].missed, shadow.misses[1].cosine
    assert 3 / 5 <= missed <= 4 / 5  # one of the two directions, or a mixture: norms 3 and 4 of 5
    assert cosine == pytest.approx((1 - missed**2) ** 0.5, abs=1e-4)  # a projection
    assert shadow.misses[1].errors == shadow.misses[1].missed


def test_the_table_has_medians_without_the_first_gradients() -> None:
    shadow = ShadowReduction(Communicator(), torch.zeros(2000), [torch.zeros(SHAPE)])
    for rank in RANKS:
        found = shadow.misses[rank]
        found.cosine, found.missed, found.errors = [0.0, 0.9, 0.8, 0.7], [9.0, 0.1, 0.3, 0.2], [9.0, 1, 3, 2]
    lines = table(shadow, 1).splitlines()
    assert lines[2] == "| whole | 8 | 1 | 0 % | 0 % |"
    assert lines[3] == f"| 1 | {4 * (40 + 50) / 1e3:.0f} | 0.800 | 20 % | 200 % |"
