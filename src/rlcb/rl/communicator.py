"""How the processes that learn together talk. One process alone talks to nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

T = TypeVar("T")


class Communicator:
    """A world of one process: every collective operation is the identity.

    The trainer, the learner and the reward scaler are written against these operations, so that what they
    compute does not depend on the number of processes. Every process has to call the same operations in the
    same order.
    """

    rank: int = 0
    world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    names: Sequence[str] = ()
    """What the processes of a distributed run are called, by rank."""

    @property
    def local_size(self) -> int:
        """Processes of one node, which share a rollout."""
        return self.world_size // self.num_nodes

    @property
    def local_rank(self) -> int:
        """Ranks are numbered node by node."""
        return self.rank % self.local_size

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all processes, in place."""
        return tensor

    def sum_floats(self, values: Sequence[float]) -> list[float]:
        """Sum float64 numbers over all processes."""
        sums: list[float] = self.sum_(torch.tensor(list(values), dtype=torch.float64)).tolist()
        return sums

    def from_main(self, value: float) -> float:
        """The main process's number, in every process."""
        return self.sum_floats([value if self.is_main else 0.0])[0]

    def boundary(self, elapsed: float, signal_number: int) -> tuple[float, int]:
        """At an update boundary: the main process's clock, and the signal that some process was asked to stop
        by."""
        return self.from_main(elapsed), signal_number

    def once(self, make: Callable[[], T]) -> T:
        """What `make` gives, in every process. The processes of one machine see the same files: each calls
        it."""
        return make()

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite a tensor with the main process's."""
        return tensor

    def node_shard(self, samples: NDArray[np.int64], num_envs: int) -> NDArray[np.int64]:
        """Those of a minibatch's samples that this node has.

        `samples` (n,) are numbers t * N + i in the rollout of all nodes together, N environments wide; each
        node holds the columns of `num_envs` of them. Returns numbers in the node's own rollout.
        """
        if self.num_nodes == 1:
            return samples
        steps, envs = np.divmod(samples, num_envs * self.num_nodes)
        envs -= self.node_rank * num_envs
        here = (envs >= 0) & (envs < num_envs)
        own: NDArray[np.int64] = steps[here] * num_envs + envs[here]
        return own

    def rank_shard(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of samples that this node has, this process's share: together its processes take every one once."""
        return samples[self.local_rank :: self.local_size]

    def shard(self, samples: NDArray[np.int64], num_envs: int) -> NDArray[np.int64]:
        """This process's share of a minibatch, with arguments and numbers as those of `node_shard`."""
        return self.rank_shard(self.node_shard(samples, num_envs))

    def reduction(self, sums: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Reduction:
        """What sums a gradient, and the statistics behind it, over all processes.

        `sums` is the vector of both; `parameters` are the model's, whose gradients are views of it in order.
        """
        return Reduction(self, sums)

    def wait_for_peers(self, function: Callable[[], T]) -> T:
        """What a function returns that waits for other processes in its own way."""
        return function()

    def barrier(self) -> None:
        """Wait until all processes are here."""

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all processes by rank, in the main process; None elsewhere."""
        return [value]

    def require_equal(self, tensor: torch.Tensor, what: str) -> None:
        """Raise RunError if a tensor is not the same, bit for bit, in every process."""

    def close(self) -> None:
        """Leave the world."""


class Reduction:
    """Sums a minibatch's gradient and statistics over all processes when all of it is there: one
    all-reduce."""

    def __init__(self, communicator: Communicator, sums: torch.Tensor) -> None:
        self.communicator = communicator
        self.sums = sums

    def begin(self) -> None:
        """Called when each parameter gets at most one more gradient, if this process has a share."""

    def finish(self) -> None:
        """Called when the share is done: `sums` then holds what all processes have summed."""
        self.communicator.sum_(self.sums)
