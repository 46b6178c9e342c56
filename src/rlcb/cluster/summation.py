"""Sums of vectors over all ranks: over one ring of ranks, or within each node first.

`Ring` is gloo's all-reduce: every rank sends almost twice the vector to the next rank, also between nodes,
and a short vector passes 2 (ranks - 1) hops. `Hierarchy` sums within each node, then between the first ranks
of the nodes, and hands the result out within each node: only one rank of a node uses the network. Within a
node the ranks use shared memory where the system can (parallel/shared_sum.py), else gloo.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import torch
import torch.distributed as dist

from rlcb.parallel.gloo import NO_LIMIT
from rlcb.parallel.shared_sum import SharedSum

GroupSum = Callable[[torch.Tensor, Any], None]
"""Replaces a vector by its sum over a group of ranks (None: all): `all_reduce_`, `sum_compressed_`, or
`PowerSGD.sum_` (power_sgd.py)."""


def all_reduce_(tensor: torch.Tensor, group: Any) -> None:
    """Sum `tensor` over a group of ranks (None: all), in place, with gloo's all-reduce."""
    dist.all_reduce(tensor, group=group)


class Summation(Protocol):
    """A way to sum vectors. Every rank calls it with vectors of equal shape, in the same order."""

    def sum_(self, tensor: torch.Tensor, between: GroupSum = all_reduce_) -> None:
        """Replace `tensor` by its sum over all ranks. `between` makes the part of the sum that crosses nodes,
        so it may compress."""


class Ring:
    """One sum over all ranks."""

    def sum_(self, tensor: torch.Tensor, between: GroupSum = all_reduce_) -> None:
        between(tensor, None)


class Hierarchy:
    """Sums within each node, then between nodes. Nodes may have different numbers of ranks."""

    def __init__(self, rank: int, nodes: Sequence[Sequence[int]], timeout: timedelta) -> None:
        """Connect to the other ranks of this node and, as its first rank, to the first ranks of the others.

        `nodes` holds the ranks of every node.
        """
        self.shared: SharedSum | None = None
        """Sums over the ranks of this node; None: gloo does."""
        self.check: Callable[[], None] = wait_on
        """Called while ranks wait in `shared`. Raises RuntimeError, as gloo does, if one of them ended."""
        members = next(ranks for ranks in nodes if rank in ranks)
        self.leader = members[0]
        # Also of one rank: torch names a group after its ranks and the number of groups before it.
        group = new_group(members, timeout)
        self.node: Any = group if len(members) > 1 else None
        leaders = [ranks[0] for ranks in nodes]
        self.is_leader = rank == self.leader
        self.leaders: Any = new_group(leaders, timeout) if self.is_leader and len(nodes) > 1 else None

    def sum_(self, tensor: torch.Tensor, between: GroupSum = all_reduce_) -> None:
        if self.shared is not None and self.shared.fits(tensor):
            self.shared.sum_(tensor, self.check, lambda total: self._sum_over_nodes(total, between))
            return
        if self.node is not None:
            dist.reduce(tensor, self.leader, group=self.node)
        self._sum_over_nodes(tensor, between)
        if self.node is not None:
            dist.broadcast(tensor, self.leader, group=self.node)

    def _sum_over_nodes(self, tensor: torch.Tensor, between: GroupSum) -> None:
        if self.leaders is not None:
            between(tensor, self.leaders)


def wait_on() -> None:
    """Go on waiting."""


def new_group(ranks: Sequence[int], timeout: timedelta) -> Any:
    """Connect these ranks, all of which call this, as a group without a limit on its operations.

    `timeout` limits connecting.
    """
    group = dist.new_group(list(ranks), timeout, "gloo", use_local_synchronization=True)
    dist.distributed_c10d._set_pg_timeout(NO_LIMIT, group)
    return group


def sum_compressed_(tensor: torch.Tensor, group: Any) -> None:
    """Sum a float32 vector [P] over a group of n ranks, in place: sent in bfloat16, added in float32.

    Rank i adds part i of all vectors and sends the rounded sum to all. So each number is rounded twice,
    whatever n is, and all ranks get equal sums. Each rank sends 2 (n - 1) / n * 2 P bytes. One rank alone
    rounds nothing.
    """
    ranks, rank, size = dist.get_world_size(group), dist.get_rank(group), tensor.numel()
    if ranks == 1:
        return
    part = -(-size // ranks)
    sent = torch.zeros(ranks, part, dtype=torch.bfloat16)
    sent.view(-1)[:size] = tensor
    parts, totals = torch.empty_like(sent), torch.empty_like(sent)
    # A rank sends when it knows that the other one expects it. So all is expected before anything is sent,
    # or that word would wait behind what is sent, and a connection would carry one direction at a time.
    # gloo's all_to_all and all_gather do not do so.
    others = [(rank + step) % ranks for step in range(1, ranks)]
    receive = partial(dist.irecv, group=group)
    arriving_parts = [receive(parts[other], group_src=other, tag=0) for other in others]
    arriving_totals = [receive(totals[other], group_src=other, tag=1) for other in others]
    works = [dist.isend(sent[other], group=group, group_dst=other, tag=0) for other in others]
    parts[rank] = sent[rank]
    wait_for(arriving_parts)
    totals[rank] = rounded_total(parts)
    works += [dist.isend(totals[rank], group=group, group_dst=other, tag=1) for other in others]
    wait_for(arriving_totals)
    wait_for(works)
    tensor.copy_(totals.view(-1)[:size])


def wait_for(works: Sequence[Any]) -> None:
    """Wait until all these messages are sent or have arrived, however long that takes."""
    for work in works:
        work.wait(NO_LIMIT)


def rounded_total(vectors: torch.Tensor) -> torch.Tensor:
    """Return the sum over the first axis of bfloat16 vectors (n, P), added in float32, rounded once."""
    return vectors.sum(0, dtype=torch.float32).to(torch.bfloat16)


class Pending:
    """The handle of work in a SumThread, with the interface of torch.distributed's handles."""

    def __init__(self) -> None:
        self.future: concurrent.futures.Future[None] = concurrent.futures.Future()

    def is_completed(self) -> bool:
        return self.future.done()

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait until the work is done. Raises what it raised, and RuntimeError after `timeout`."""
        try:
            self.future.result(None if timeout is None else timeout.total_seconds())
        except concurrent.futures.TimeoutError:
            raise RuntimeError("not done yet") from None


class SumThread:
    """A thread that makes one sum after another, so that all ranks make them in the same order."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], None], Pending]] = SimpleQueue()
        threading.Thread(target=self._run, name="sums", daemon=True).start()

    def submit(self, work: Callable[[], None]) -> Pending:
        """Start `work` when all earlier work is done, and return its handle."""
        pending = Pending()
        self._queue.put((work, pending))
        return pending

    def _run(self) -> None:
        while True:
            work, pending = self._queue.get()
            try:
                work()
            except BaseException as error:
                pending.future.set_exception(error)
            else:
                pending.future.set_result(None)
