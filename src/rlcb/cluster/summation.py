"""Sums of vectors over all ranks: over one ring of ranks, within each node first, or by direct messages.

`Ring` is gloo's all-reduce: every rank sends almost twice the vector to the next rank, also between nodes,
and the vector passes 2 (ranks - 1) hops one after the other. `Hierarchy` sums within each node, then between
the first ranks of the nodes, and hands the result out within each node: only one rank of a node uses the
network. Within a node the ranks use shared memory where the system can (parallel/shared_sum.py), else gloo.
`Direct`, and a hierarchy of direct sums, send as many bytes as a ring, but to ranks further and further away:
2 log2(ranks) hops, and half as many for a few numbers.
"""

from __future__ import annotations

import concurrent.futures
import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import torch
import torch.distributed as dist

from rlcb.parallel.gloo import NO_LIMIT
from rlcb.parallel.shared_sum import SharedSum

SHORT_BYTES = 65_536
"""A direct sum in which ranks get so many bytes or less sends whole vectors."""
PART, TOTAL, SHORT = range(3)  # tags of messages


@dataclass(frozen=True)
class Ranks:
    """Ranks that sum among themselves: all of them, or the first ranks of the nodes."""

    group: Any = None
    """Of torch.distributed; None: all ranks."""
    direct: bool = False
    """Whether they send each other messages, not gloo's all-reduce."""

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    def sum_(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` by its sum, which is equal on all ranks."""
        if not self.direct:
            dist.all_reduce(tensor, group=self.group)
        elif self.size * tensor.nbytes <= SHORT_BYTES:
            sum_short_(tensor, self.group)
        else:
            sum_long_(tensor, self.group)


GroupSum = Callable[[torch.Tensor, Ranks], None]
"""Replaces a vector by its sum over ranks: `all_reduce_`, `sum_compressed_`, or `PowerSGD.sum_`
(power_sgd.py)."""


def all_reduce_(tensor: torch.Tensor, ranks: Ranks) -> None:
    """Replace `tensor` by its exact sum over ranks, in the way that they have."""
    ranks.sum_(tensor)


def sum_compressed_(tensor: torch.Tensor, ranks: Ranks) -> None:
    """Sum a float32 vector [P] over n ranks, in place: sent in bfloat16, added in float32.

    Rank i adds part i of all vectors and sends the rounded sum to all. So each number is rounded twice,
    whatever n is, and all ranks get equal sums. Each rank sends 2 (n - 1) / n * 2 P bytes. One rank alone
    rounds nothing.
    """
    size, group, count = tensor.numel(), ranks.group, ranks.size
    if count == 1:
        return
    rank, part = dist.get_rank(group), -(-size // count)
    sent = torch.zeros(count, part, dtype=torch.bfloat16)
    sent.view(-1)[:size] = tensor
    parts, totals = torch.empty_like(sent), torch.empty_like(sent)
    # A rank sends when it knows that the other one expects it. So all is expected before anything is sent,
    # or that word would wait behind what is sent, and a connection would carry one direction at a time.
    # gloo's all_to_all and all_gather do not do so.
    others = [(rank + step) % count for step in range(1, count)]
    receive, send = partial(dist.irecv, group=group), partial(dist.isend, group=group)
    arriving_parts = [receive(parts[other], group_src=other, tag=PART) for other in others]
    arriving_totals = [receive(totals[other], group_src=other, tag=TOTAL) for other in others]
    works = [send(sent[other], group_dst=other, tag=PART) for other in others]
    parts[rank] = sent[rank]
    wait_for(arriving_parts)
    totals[rank] = rounded_total(parts)
    works += [send(totals[rank], group_dst=other, tag=TOTAL) for other in others]
    wait_for(arriving_totals)
    wait_for(works)
    tensor.copy_(totals.view(-1)[:size])


class Summation(Protocol):
    """A way to sum vectors. Every rank calls it with vectors of equal shape, in the same order."""

    def sum_(self, tensor: torch.Tensor, between: GroupSum = all_reduce_) -> None:
        """Replace `tensor` by its sum over all ranks. `between` makes the part of the sum that crosses nodes,
        so it may compress."""


class Ring:
    """One sum over all ranks, over a ring."""

    def sum_(self, tensor: torch.Tensor, between: GroupSum = all_reduce_) -> None:
        between(tensor, Ranks())


class Direct:
    """One sum over all ranks, by direct messages; for nodes of one rank."""

    def sum_(self, tensor: torch.Tensor, between: GroupSum = all_reduce_) -> None:
        between(tensor, Ranks(direct=True))


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
        self.leaders: Ranks | None = None
        if self.is_leader and len(nodes) > 1:
            self.leaders = Ranks(new_group(leaders, timeout))

    def directly(self) -> Hierarchy:
        """Return this hierarchy, over the same connections, with direct sums between nodes."""
        other = copy.copy(self)
        other.leaders = None if self.leaders is None else Ranks(self.leaders.group, direct=True)
        return other

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


def sum_short_(tensor: torch.Tensor, group: Any) -> None:
    """Sum a short vector over a group of n ranks, in place, in the logarithm of n (base 2, rounded up) hops.

    Ranks collect all vectors, twice as many with every hop (Bruck et al. 1997), and add them in the order of
    ranks: all get the same bits.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    vectors = tensor.new_empty(ranks, tensor.numel())  # row i: that of rank (rank + i) % ranks
    vectors[0] = tensor.view(-1)
    steps = [(1 << power, min(1 << power, ranks - (1 << power))) for power in range((ranks - 1).bit_length())]
    arriving = [
        dist.irecv(vectors[step : step + count], group=group, group_src=(rank + step) % ranks, tag=SHORT)
        for step, count in steps
    ]
    sent = []
    for (step, count), message in zip(steps, arriving, strict=True):
        sent.append(dist.isend(vectors[:count], group=group, group_dst=(rank - step) % ranks, tag=SHORT))
        wait_for([message])
    wait_for(sent)
    total = tensor.view(-1).zero_()
    for other in range(ranks):
        total += vectors[(other - rank) % ranks]


def sum_long_(tensor: torch.Tensor, group: Any) -> None:
    """Sum a vector of P numbers over a group of n ranks, in place, in 2 log2(n) hops.

    Ranks exchange halves of what they still have to add, until each has the sum of its part, and then double
    the parts they know (Rabenseifner 2004): all get the same bits. Each sends 2 (n - 1) / n * P numbers, to
    one rank at a time. If n is no power of two, some ranks first give their vectors to others.
    """
    ranks, rank, vector = dist.get_world_size(group), dist.get_rank(group), tensor.view(-1)
    receive, send = partial(dist.irecv, group=group), partial(dist.isend, group=group)
    power = 1 << (ranks.bit_length() - 1)
    if rank >= power:
        total = receive(vector, group_src=rank - power, tag=TOTAL)
        wait_for([send(vector, group_dst=rank - power, tag=PART), total])
        return
    kept, rounds, distance = slice(0, len(vector)), [], power >> 1
    while distance:
        middle = (kept.start + kept.stop) // 2
        halves = slice(kept.start, middle), slice(middle, kept.stop)
        kept, given = halves if rank < rank ^ distance else halves[::-1]
        rounds.append((rank ^ distance, kept, given))
        distance >>= 1
    # A rank sends when it knows that the other one expects it. So all is expected before anything is sent.
    # What a rank has given away comes back into its place, as a sum.
    whole = torch.empty_like(vector) if rank + power < ranks else None
    first = [] if whole is None else [receive(whole, group_src=rank + power, tag=PART)]
    parts = [torch.empty_like(vector[kept]) for _, kept, _ in rounds]
    arriving = [receive(part, group_src=other, tag=PART) for (other, *_), part in zip(rounds, parts)]
    totals = [receive(vector[given], group_src=other, tag=TOTAL) for other, _, given in rounds]
    wait_for(first)
    if whole is not None:
        vector += whole
    sent = []
    for (other, kept, given), part, message in zip(rounds, parts, arriving):
        sent.append(send(vector[given], group_dst=other, tag=PART))
        wait_for([message])
        vector[kept] += part
    for (other, kept, _), message in zip(rounds[::-1], totals[::-1]):
        sent.append(send(vector[kept], group_dst=other, tag=TOTAL))
        wait_for([message])
    if whole is not None:
        sent.append(send(vector, group_dst=rank + power, tag=TOTAL))
    wait_for(sent)


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
