"""How the processes that learn together talk. One process alone talks to nobody."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import _set_pg_timeout

from src.cpu_utils import calm_threads
from src.errors import PeerLost, RunError, first_line
from src.terminal import counted

T = TypeVar("T")

NETWORK_THREAD = "gloo_tcp_loop"  # what gloo calls its thread for sockets
NO_LIMIT = timedelta(days=30)  # gloo has to be given one


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

    def on_node(self, samples: NDArray[np.int64], num_envs: int) -> NDArray[np.int64]:
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

    def own(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of samples that this node has, this process's share: together its processes take every one once."""
        return samples[self.local_rank :: self.local_size]

    def share(self, samples: NDArray[np.int64], num_envs: int) -> NDArray[np.int64]:
        """This process's share of a minibatch, with arguments and numbers as those of `on_node`."""
        return self.own(self.on_node(samples, num_envs))

    def reduction(self, sums: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Reduction:
        """What sums a gradient, and the statistics behind it, over all processes.

        `sums` is the vector of both; `parameters` are the model's, whose gradients are views of it in order.
        """
        return Reduction(self, sums)

    def attend(self, function: Callable[[], T]) -> T:
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


def calm_network_thread() -> None:
    """Keep gloo's thread for sockets from interrupting the thread that uses them.

    What arrives wakes it, and it takes the core of the thread that is about to send or to receive and holds
    the connection's lock; for that lock it then asks over and over, until the kernel puts it aside some
    milliseconds later. With a process for each core that happened in most sums.
    """
    calm_threads(NETWORK_THREAD)


def wait_without_limit() -> None:
    """Let the operations of gloo's processes, which have met, take as long as they take.

    For runs that somebody watches: who hangs is ended by that, who dies closes its connections. A time-out
    would end those whose processes are slow, as when actors take minutes for an unroll, or were suspended.
    """
    _set_pg_timeout(NO_LIMIT)


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


class GlooCommunicator(Communicator):
    """Processes of one or several machines, over torch.distributed's gloo."""

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        timeout_seconds: float,
        around_wait: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Join the others, who meet at `store` (a torch.distributed store).

        Every operation is inside the context `around_wait`, so that others can see that this process waits.
        Operations raise PeerLost when another process is gone or, until `wait_without_limit`, has not come
        for `timeout_seconds`.
        """
        self.rank = rank
        self.world_size = world_size
        self.around_wait = around_wait
        self._call(
            dist.init_process_group,
            "gloo",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_seconds),
        )
        calm_network_thread()

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        self._call(dist.all_reduce, tensor)
        return tensor

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        self._call(dist.broadcast, tensor, 0)
        return tensor

    def barrier(self) -> None:
        self.sum_(torch.zeros(1))

    def gather(self, value: Any) -> list[Any] | None:
        values: list[Any] | None = [None] * self.world_size if self.is_main else None
        self._call(dist.gather_object, value, values)
        return values

    def require_equal(self, tensor: torch.Tensor, what: str) -> None:
        digest = hashlib.blake2b(tensor.numpy().tobytes(), digest_size=7).digest()
        number = torch.tensor([int.from_bytes(digest, "big")], dtype=torch.int64)
        numbers = [torch.zeros_like(number) for _ in range(self.world_size)]
        self._call(dist.all_gather, numbers, number)
        different = [rank for rank, other in enumerate(numbers) if not torch.equal(other, numbers[0])]
        if different:
            others = f"{counted(len(different), 'worker')}: {different}"
            raise RunError(f"{what} differ from those of worker 0 on {others}")

    def _call(self, operation: Any, *arguments: Any, **options: Any) -> None:
        try:
            with self.around_wait():
                operation(*arguments, **options)
        except RuntimeError as error:  # gloo's word for a closed connection or a time-out
            raise PeerLost(f"worker {self.rank} lost the others: {first_line(error)}") from error

    def close(self) -> None:
        dist.destroy_process_group()


def use_loopback() -> None:
    """Have gloo talk over the loopback interface unless GLOO_SOCKET_IFNAME says otherwise."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")


if __name__ == "__main__":
    from src.cluster_check import main

    sys.exit(main())
