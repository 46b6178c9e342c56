"""The place of a process in a distributed run: its node, its rank, and how many there are."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """A distributed run as one of its processes sees it. Ranks are numbered node by node."""

    launcher: str
    """torchrun, slurm or hand."""
    num_nodes: int
    node_rank: int
    num_workers: int
    """Ranks of this node."""
    local_rank: int | None
    """Which of the node's ranks this process is; None: it is none, and starts them all."""
    master_addr: str
    master_port: int | None
    """None: any free one, which can be only with one node."""
    hosted: bool = False
    """Whether the launcher keeps the store that ranks meet at; else rank 0 does."""
    restarts: int = 0
    """How often the launcher has started this run anew."""
    node_sizes: tuple[int, ...] = ()
    """Ranks of each node; empty: every node has as many as this one."""
    complete: bool = True
    """Whether `node_sizes` holds for all nodes. If not, the nodes have yet to tell each other
    (cluster/node_sizes.py); until then only `rank` and `size` of a process that is a rank are right."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ranks of each node."""
        return self.node_sizes or (self.num_workers,) * self.num_nodes

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def first_rank(self) -> int:
        """The first rank of this node."""
        return sum(self.sizes[: self.node_rank])

    @property
    def rank(self) -> int:
        """The rank of this process, or of the first worker that it starts if it is not a rank itself."""
        return self.first_rank + (self.local_rank or 0)

    def rank_name(self, local_rank: int) -> str:
        return f"rank {self.first_rank + local_rank} on {host_name()}"


def host_name() -> str:
    """This node's name: SLURM's where it is one of SLURM's nodes."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
