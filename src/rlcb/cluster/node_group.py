"""The ranks of one node as a group that learns by itself, for `cluster.average_every`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from rlcb.rl.communicator import Communicator

if TYPE_CHECKING:
    from rlcb.cluster.communicator import ClusterCommunicator


class NodeGroup(Communicator):
    """The ranks of this rank's node: they sum gradients and statistics among themselves."""

    def __init__(self, cluster: ClusterCommunicator, group: Any) -> None:
        """`group` is torch's group of the node's ranks; None if the node has one rank."""
        self.rank, self.world_size = cluster.local_rank, cluster.local_size
        self.cluster = cluster
        self.group = group

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            self.cluster.wait(self.cluster.begin(dist.all_reduce, tensor, group=self.group))
        return tensor
