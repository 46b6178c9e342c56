"""Collective operations between processes, over the gloo backend of torch.distributed."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from rlcb.cpu import calm_threads
from rlcb.errors import PeerLost, RunError, first_line
from rlcb.parallel import shared_sum
from rlcb.parallel.shared_sum import SharedSum
from rlcb.rl.communicator import Communicator
from rlcb.text import counted

NETWORK_THREAD = "gloo_tcp_loop"  # what gloo calls its thread for sockets
NO_LIMIT = timedelta(days=30)  # gloo has to be given one


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


class GlooCommunicator(Communicator):
    """Processes of one or several machines, over torch.distributed's gloo."""

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        timeout_seconds: float,
        around_wait: Callable[[], AbstractContextManager[None]] = nullcontext,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Join the others, who meet at `store` (a torch.distributed store).

        Every operation is inside the context `around_wait`, so that others can see that this process waits.
        Operations raise PeerLost when another process is gone or, until `wait_without_limit`, has not come
        for `timeout_seconds`. With `check`, sums may go through shared memory (shared_sum.py): it is called
        several times a second while this process waits there, and raises if another process is gone.
        """
        self.rank = rank
        self.world_size = world_size
        self.around_wait = around_wait
        self.check = check
        self.shared_sum: SharedSum | None = None
        timeout = timedelta(seconds=timeout_seconds)
        self._connect(
            lambda: dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=world_size, timeout=timeout
            )
        )
        calm_network_thread()

    def _connect(self, meet: Callable[[], None]) -> None:
        """Call `meet`, which waits for all other processes."""
        self._call(meet)

    def memory_for_sums(self, vector_bytes: int) -> int:
        if self.check is None or self.world_size == 1 or not shared_sum.is_available():
            return 0
        return shared_sum.memory_bytes(self.world_size, vector_bytes)

    def use_memory(self, memory: Any) -> None:
        self.shared_sum = SharedSum(memory, self.rank, self.world_size)

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.check is None or self.shared_sum is None or not self.shared_sum.fits(tensor):
            self._call(dist.all_reduce, tensor)
            return tensor
        with self.around_wait():
            return self.shared_sum.sum_(tensor, self.check)

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        self._call(dist.broadcast, tensor, 0)
        return tensor

    def barrier(self) -> None:
        self.sum_(torch.zeros(1))

    def gather(self, value: Any) -> list[Any] | None:
        if self.check is not None and self.shared_sum is not None:
            with self.around_wait():
                parts = self.shared_sum.gather(pickled(value), self.check)
            if parts is not None:
                return [pickle.loads(part) for part in parts] if self.is_main else None
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


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays. torch's own format takes about 0.3 ms for each."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and value.dtype != torch.bfloat16:  # which NumPy does not have
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def pickled(value: Any) -> bytes:
    """Return the pickle of a value that may contain tensors."""
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def use_loopback() -> None:
    """Have gloo talk over the loopback interface unless GLOO_SOCKET_IFNAME says otherwise."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
