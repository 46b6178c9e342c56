"""The ranks of one node as a group that learns by itself, for `cluster.average_every`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from rlcb.cluster.summation import Hierarchy
from rlcb.cluster.watchdog import Watchdog
from rlcb.errors import PeerLost, first_line
from rlcb.rl.communicator import Communicator, Reduction


class Cluster(Protocol):
    """All ranks of the run: a ClusterCommunicator."""

    watch: Watchdog

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

    def share_sums(self, hierarchy: Hierarchy, vector_bytes: int) -> None:
        """Let this node's ranks sum through shared memory, if they can."""


class NodeGroup(Communicator):
    """The ranks of this rank's node: they sum gradients and statistics among themselves."""

    def __init__(self, cluster: Cluster, hierarchy: Hierarchy) -> None:
        """`hierarchy` connects this node's ranks; from the first reduction on it uses their shared memory."""
        self.rank, self.world_size = cluster.local_rank, cluster.local_size
        self.cluster = cluster
        self.hierarchy = hierarchy

    def reduction(self, sums: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Reduction:
        self.cluster.share_sums(self.hierarchy, sums.nbytes)
        return super().reduction(sums, parameters)

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        shared, group = self.hierarchy.shared, self.hierarchy.node
        if shared is not None and shared.fits(tensor):
            try:
                with self.cluster.watch.waiting():
                    return shared.sum_(tensor, self._check)
            except RuntimeError as error:
                raise self.cluster.watch.agree(PeerLost(first_line(error))) from error
        if group is not None:
            self.cluster.wait(self.cluster.begin(dist.all_reduce, tensor, group=group))
        return tensor

    def _check(self) -> None:
        self.cluster.watch.check()
        self.hierarchy.check()
