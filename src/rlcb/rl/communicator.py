"""The interface through which learning processes communicate, for a single process.

Subclasses: parallel/gloo.py for one machine, cluster/communicator.py for several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

T = TypeVar("T")


class Communicator:
    """A group of one process: every collective operation is the identity.

    The trainer, the learner and the reward scaler use these operations, so their results do not depend on
    the number of processes. Every process must call the same operations in the same order.
    """

    rank: int = 0
    world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    node_sizes: Sequence[int] = ()
    """The number of processes of each node; empty: all nodes have equally many."""
    names: Sequence[str] = ()
    """The names of a distributed run's processes by rank, for messages; empty on one machine."""

    @property
    def local_size(self) -> int:
        """The number of processes of this node; they share a rollout."""
        return self.node_sizes[self.node_rank] if self.node_sizes else self.world_size // self.num_nodes

    @property
    def local_rank(self) -> int:
        """The rank within the node; ranks are numbered node by node."""
        if self.node_sizes:
            return self.rank - sum(self.node_sizes[: self.node_rank])
        return self.rank % self.local_size

    def over_all_nodes(self, count: int) -> int:
        """Return how many samples (or environments) all nodes have, if this node has `count`: a node has as
        many times more of them as it has more processes."""
        return count * self.world_size // self.local_size

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all processes, in place, and return it."""
        return tensor

    def sum_floats(self, values: Sequence[float]) -> list[float]:
        """Return the sums of float64 numbers over all processes."""
        sums: list[float] = self.sum_(torch.tensor(list(values), dtype=torch.float64)).tolist()
        return sums

    def from_main(self, value: float) -> float:
        """Return the main process's number in every process."""
        return self.sum_floats([value if self.is_main else 0.0])[0]

    def boundary(self, elapsed: float, signal_number: int) -> tuple[float, int]:
        """Agree at an update boundary: return the main process's elapsed seconds, and the signal that asked
        any process to stop, 0 if none."""
        return self.from_main(elapsed), signal_number

    def once(self, make: Callable[[], T]) -> T:
        """Return the result of `make` in every process.

        On one machine every process calls it, since all see the same files; on several nodes only the main
        process does.
        """
        return make()

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite a tensor with the main process's, and return it."""
        return tensor

    def node_shard(self, samples: NDArray[np.int64], num_envs: int) -> NDArray[np.int64]:
        """Return the samples of a minibatch that are in this node's rollout.

        `samples` (n,) are numbers t * N + i in the rollout of all nodes together, which has N columns; each
        node holds `num_envs` of them. The result counts in the node's rollout, t * num_envs + j.
        """
        if self.num_nodes == 1:
            return samples
        steps, envs = np.divmod(samples, self.over_all_nodes(num_envs))
        envs -= (self.rank - self.local_rank) * num_envs // self.local_size  # the node's first column
        here = (envs >= 0) & (envs < num_envs)
        local: NDArray[np.int64] = steps[here] * num_envs + envs[here]
        return local

    def rank_shard(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return this process's shard of the node's samples (or columns); each is in exactly one shard."""
        return samples[self.local_rank :: self.local_size]

    def shard(self, samples: NDArray[np.int64], num_envs: int) -> NDArray[np.int64]:
        """Return this process's shard of a minibatch; arguments and result as in `node_shard`."""
        return self.rank_shard(self.node_shard(samples, num_envs))

    def memory_for_sums(self, vector_bytes: int) -> int:
        """Return how many bytes of shared memory, zeros at first, make sums of such vectors faster."""
        return 0

    def use_memory(self, memory: Any) -> None:
        """Sum through this memory, which all processes share, from now on. All call it between two sums."""

    def learners(self) -> Communicator:
        """Return the group of processes that make each optimizer step together: all, unless nodes learn by
        themselves (`cluster.average_every`)."""
        return self

    def reduction(self, sums: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Reduction:
        """Return the reduction that sums a gradient and its statistics over all processes.

        `sums` is the vector of both. The gradients of `parameters`, the model's, are views of it, in order.
        """
        return Reduction(self, sums)

    def wait_for_peers(self, function: Callable[[], T]) -> T:
        """Return the result of a function that waits for other processes by other means."""
        return function()

    def barrier(self) -> None:
        """Wait until every process has called this."""

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all processes by rank in the main process, None in the others."""
        return [value]

    def require_equal(self, tensor: torch.Tensor, what: str) -> None:
        """Raise RunError, naming `what`, if a tensor is not bit for bit equal in every process."""

    def facts(self) -> dict[str, str]:
        """Return how processes communicate, as {name: text} for the settings that a run prints."""
        return {}

    def metrics(self) -> dict[str, Any]:
        """Return what this kind of group adds to benchmark_metrics.json."""
        return {}

    def close(self) -> None:
        """Leave the group of processes."""


class Reduction:
    """Sums a minibatch's gradient and statistics over all processes in one all-reduce at the end.

    Subclasses send parts of the gradient while the backward pass still runs.
    """

    def __init__(self, communicator: Communicator, sums: torch.Tensor) -> None:
        self.communicator = communicator
        self.sums = sums

    def begin(self) -> None:
        """Called before the last microbatch, if there is one: each parameter gets one more gradient."""

    def finish(self) -> None:
        """Called after the last microbatch: finish the sum over all processes, in place."""
        self.communicator.sum_(self.sums)

    def gather_state(self) -> None:
        """Make `state` complete in the main process. All processes call it at the end of a run."""

    def state(self) -> dict[str, torch.Tensor]:
        """Return what the next sums depend on, for a checkpoint; nothing if that is only the gradients."""
        return {}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from what `state` returned in the main process. All processes call it."""
