"""The newest parameters in shared memory: the learner publishes them, actors read them without waiting."""

from __future__ import annotations

import numpy as np
import torch

from rlcb.processes.shared_memory import Layout, layout_bytes, views


def snapshot_layout(num_parameters: int) -> Layout:
    """Return the arrays of a snapshot of P parameters."""
    return {
        "parameters": ((2, num_parameters), np.dtype(np.float32)),
        "versions": ((2,), np.dtype(np.int64)),
        "checksums": ((2,), np.dtype(np.int64)),
        "latest": ((1,), np.dtype(np.int64)),  # which of the two was published last
    }


def snapshot_bytes(num_parameters: int) -> int:
    """Return the bytes of shared memory that a ParameterSnapshot needs."""
    return layout_bytes(snapshot_layout(num_parameters))


class ParameterSnapshot:
    """Two copies of the parameters, written in turn, so that readers always find a complete one.

    There is no lock: a reader never delays the writer, and a killed process leaves none behind. A reader
    accepts its copy only if checksum and version are those that were published with it, which holds whatever
    the memory order of the machine is.
    """

    def __init__(self, num_parameters: int, memory: object) -> None:
        """`memory` is a writable buffer of `snapshot_bytes`, zeros before anything is published."""
        arrays = views(snapshot_layout(num_parameters), memory)
        self.copies = torch.from_numpy(arrays["parameters"])
        self.versions, self.checksums, self.latest = arrays["versions"], arrays["checksums"], arrays["latest"]

    def publish(self, parameters: torch.Tensor, version: int) -> None:
        """Publish `parameters` (P,) as `version`. Only one process may call this."""
        index = 1 - int(self.latest[0])
        self.versions[index] = -1
        self.copies[index].copy_(parameters.detach())
        self.checksums[index] = checksum(self.copies[index])
        self.versions[index] = version
        self.latest[0] = index

    @property
    def version(self) -> int:
        """The version that was published last; negative while the next one is being written. 0 at first."""
        return int(self.versions[int(self.latest[0])])

    def read(self, parameters: torch.Tensor) -> int:
        """Overwrite `parameters` (P,) with the newest published ones; return their version. Waits for the
        first publication."""
        while True:
            index = int(self.latest[0])
            version = int(self.versions[index])
            parameters.copy_(self.copies[index])
            whole = checksum(parameters) == self.checksums[index] and version == self.versions[index]
            if whole and version >= 0:
                return version


def checksum(parameters: torch.Tensor) -> int:
    """Return the sum of the parameters' memory in words of 64 bits.

    A mixture of two versions has the sum of one of them only by a chance of 2^-64. CRC-32 takes eleven times
    as long.
    """
    numbers = parameters.detach().numpy()
    even = len(numbers) // 2 * 2
    return int(numbers[:even].view(np.int64).sum() ^ numbers[even:].view(np.int32).sum(dtype=np.int64))
