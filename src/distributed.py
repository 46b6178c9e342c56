"""How the processes that learn together talk. One process alone talks to nobody."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Communicator:
    """A world of one process: every collective operation is the identity.

    The trainer, the learner and the reward scaler are written against these operations, so that what they
    compute does not depend on the number of processes.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all processes, in place."""
        return tensor

    def sum_floats(self, values: Sequence[float]) -> list[float]:
        """Sum float64 numbers over all processes."""
        return self.sum_(torch.tensor(list(values), dtype=torch.float64)).tolist()
