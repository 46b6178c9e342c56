"""The ranks of one node as a group that learns by itself, for `cluster.average_every`."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

from rlcb.rl.communicator import Communicator


class Cluster(Protocol):
    """All ranks of the run: a ClusterCommunicator."""

    @property
    def local_rank(self) -> int:
        """The rank within its node."""

    @property
    def local_size(self) -> int:
        """The number of ranks of a node."""

    def begin(self, operation: Any, *arguments: Any, **options: Any) -> Any:
        """Start a torch.distributed operation and return its handle."""

    def wait(self, work: Any) -> None:
        """Wait until the operation with this handle is done."""


class NodeGroup(Communicator):
    """The ranks of this rank's node: they sum gradients and statistics among themselves."""

    def __init__(self, cluster: Cluster, group: Any) -> None:
        """`group` is torch's group of the node's ranks; None if the node has one rank."""
        self.rank, self.world_size = cluster.local_rank, cluster.local_size
        self.cluster = cluster
        self.group = group

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            self.cluster.wait(self.cluster.begin(dist.all_reduce, tensor, group=self.group))
        return tensor
