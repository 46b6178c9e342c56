"""PowerSGD: sums of gradients as matrices of low rank, with error feedback.

Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"
(arXiv 1905.13727), algorithms 1 and 2. A gradient of m x n numbers travels as r (m + n) numbers. G_i is the
gradient of process i, and E_i its errors: the part of its earlier gradients that no sum has contained.

    M_i <- G_i + E_i                          [m, n]
    P   <- sum over processes of M_i Q        [m, r]   first sum
    P   <- orthonormal basis of P's columns            in every process, from equal numbers
    Q_i <- M_i^T P                            [n, r]
    E_i <- M_i - P Q_i^T
    Q   <- sum over processes of Q_i          [n, r]   second sum; the sum of the next gradient starts from Q
    sum of all M_i ~ P Q^T                    [m, n]

All steps but the basis are linear: sums depend on the errors only through the sum of all E_i.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from rlcb.cluster.summation import Ranks

SAVING = 2
"""A matrix is sent in low rank if this divides its numbers by SAVING or more."""
SEED = 1  # of the first Q, which is equal in all processes


class Matrix(NamedTuple):
    """A matrix of the gradient that is sent in low rank, with views of the vectors of a PowerSGD."""

    numbers: slice
    """Its place in the gradient, row by row."""
    errors: torch.Tensor  # [m, n]
    p: torch.Tensor  # [r, m], P transposed; many times as fast to compute as P
    q: torch.Tensor  # [r, n], Q transposed


class PowerSGD:
    """Sums gradients in low rank, and keeps the errors of this process for the next sum.

    The processes of a sum have made the same sums before.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], rank: int, size: int) -> None:
        """Choose the matrices among `parameters`, whose gradients stand one after the other in the vectors
        [size] to sum. What follows them there, such as statistics, is sent whole."""
        self.rank, self.size = rank, size
        ends = list(itertools.accumulate((each.numel() for each in parameters), initial=0))
        places = [slice(start, end) for start, end in itertools.pairwise(ends)]
        found = [
            (place, m, n)
            for place, (m, n) in zip(places, map(matrix_shape, parameters), strict=True)
            if SAVING * rank * (m + n) <= m * n
        ]
        bounds = [0, *(bound for place, _, _ in found for bound in (place.start, place.stop)), size]
        self.whole = [slice(start, end) for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
        """The parts of the vector between the matrices."""
        num_whole = size - sum(m * n for _, m, n in found)
        self.errors = torch.zeros(size - num_whole)
        """E_i of all matrices, one after the other."""
        self.first = torch.zeros(num_whole + rank * sum(m for _, m, _ in found))
        """What the first sum sends: the parts between the matrices, then P of all matrices."""
        self.q = torch.randn(
            rank * sum(n for _, _, n in found), generator=torch.Generator().manual_seed(SEED)
        )
        """What the second sum sends: Q of all matrices."""
        self.first_whole = self.first[:num_whole]
        errors = _parts(self.errors, [m * n for _, m, n in found])
        p = _parts(self.first[num_whole:], [rank * m for _, m, _ in found])
        q = _parts(self.q, [rank * n for _, _, n in found])
        self.matrices = [
            Matrix(place, errors[i].view(m, n), p[i].view(rank, m), q[i].view(rank, n))
            for i, (place, m, n) in enumerate(found)
        ]

    def sum_(self, vector: torch.Tensor, ranks: Ranks) -> None:
        """Replace a float32 vector [size] by its approximate sum over some processes.

        All get equal sums. One process alone changes nothing.
        """
        if ranks.size > 1:
            self.sum_with(vector, ranks.sum_)

    def sum_with(self, vector: torch.Tensor, add: Callable[[torch.Tensor], object]) -> None:
        """Replace a vector by its approximate sum; `add` replaces vectors by their exact sums, twice."""
        torch.cat([vector[part] for part in self.whole], out=self.first_whole)
        for numbers, errors, p, q in self.matrices:
            errors += vector[numbers].view_as(errors)  # now M_i
            torch.mm(q, errors.T, out=p)
        add(self.first)
        for _, errors, p, q in self.matrices:
            p.copy_(torch.linalg.qr(p.T).Q.T)
            torch.mm(p, errors, out=q)
            errors.addmm_(p.T, q, alpha=-1)
        if self.matrices:
            add(self.q)
        for numbers, errors, p, q in self.matrices:
            torch.mm(p.T, q, out=vector[numbers].view_as(errors))
        sizes = [part.stop - part.start for part in self.whole]
        for part, values in zip(self.whole, _parts(self.first_whole, sizes), strict=True):
            vector[part] = values

    @property
    def bytes_sent(self) -> int:
        """The bytes of the two vectors that are summed instead of the whole one."""
        return self.first.nbytes + self.q.nbytes

    def describe(self) -> str:
        """Return the rank, and the bytes of a sum."""
        sent = self.bytes_sent / 1e3
        return f"powersgd of rank {self.rank}: {sent:,.1f} instead of {4 * self.size / 1e3:,.1f} kB"


def _parts(vector: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Return views of consecutive parts of a vector."""
    ends = itertools.accumulate(sizes)
    return [vector[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def matrix_shape(parameter: torch.Tensor) -> tuple[int, int]:
    """Return (rows, columns) of a parameter's gradient as a matrix: a convolution of K kernels has K rows.

    Columns are in the order of memory, which channels_last changes, and PowerSGD does not depend on it.
    A vector has no rows to share: (1, its length).
    """
    if parameter.dim() < 2:
        return 1, parameter.numel()
    return parameter.shape[0], parameter.numel() // parameter.shape[0]
