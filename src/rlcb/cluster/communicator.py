"""The communicator of a distributed run: gloo, but no wait outlasts the others."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rlcb.cluster.gradient_reduction import BucketReduction, CompressedReduction
from rlcb.cluster.watchdog import Watch
from rlcb.config.settings import ClusterConfig
from rlcb.errors import PeerLost, RunError, UsageError, first_line
from rlcb.parallel.gloo import GlooCommunicator, calm_network_thread, wait_without_limit
from rlcb.parallel.world import World
from rlcb.processes.signals import StopSignal
from rlcb.rl.communicator import Reduction

T = TypeVar("T")
logger = logging.getLogger(__name__)

ROUNDING = 1e-4  # what equal updates on processors of different kinds can differ by after a hundred
LOOK_SECONDS = 0.2  # between two looks whether the others are still there


class ClusterCommunicator(GlooCommunicator):
    """Ranks of several nodes. Its operations raise what the run ends with, in the words of `watch`."""

    def __init__(self, store: Any, world: World, config: ClusterConfig, watch: Watch) -> None:
        self.rank, self.world_size = world.rank, world.size
        self.node_rank, self.num_nodes = world.node_rank, world.num_nodes
        self.names = watch.names
        self.config = config
        self.watch = watch
        self._connect_all(store)

    def _connect_all(self, store: Any) -> None:
        # To meet. Who is gone is noticed by the watch long before.
        timeout = timedelta(seconds=10 * max(60.0, self.config.timeout_seconds))
        self.wait_for_peers(
            lambda: dist.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.world_size, timeout=timeout
            )
        )
        wait_without_limit()
        calm_network_thread()

    def wait_for_peers(self, function: Callable[[], T]) -> T:
        """What a function returns that waits for others in its own way.

        It runs in a thread, so that a rank that fails meanwhile is noticed.
        """
        result: list[T] = []
        failure: list[Exception] = []

        def call() -> None:
            try:
                result.append(function())
            except Exception as error:
                failure.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        with self.watch.waiting():
            while thread.is_alive():
                thread.join(LOOK_SECONDS)
                self.watch.check()
        if failure and isinstance(failure[0], RuntimeError):  # gloo's word for a closed connection
            raise self.watch.agree(PeerLost(first_line(failure[0]))) from failure[0]
        if failure:
            raise failure[0]
        return result[0]

    def _call(self, operation: Any, *arguments: Any, **options: Any) -> None:
        self.wait(self.begin(operation, *arguments, **options))

    def begin(self, operation: Any, *arguments: Any, **options: Any) -> Any:
        """Begin an operation that goes on by itself; returns what `wait` waits for."""
        try:
            return operation(*arguments, **options, async_op=True)
        except RuntimeError as error:
            raise self.watch.agree(PeerLost(first_line(error))) from error

    def wait(self, work: Any) -> None:
        with self.watch.waiting():
            while True:
                try:
                    work.wait(timedelta(seconds=LOOK_SECONDS))
                    return
                except RuntimeError:  # not yet done, or failed
                    if work.is_completed():
                        break
                self.watch.check()
            try:
                work.wait()  # it may have been done just when the time was over
            except RuntimeError as error:
                raise self.watch.agree(PeerLost(first_line(error))) from error

    def boundary(self, elapsed: float, signal_number: int) -> tuple[float, int]:
        asked = [float(signal_number == each) for each in StopSignal.SIGNALS]
        time_now, *counts = self.sum_floats([elapsed if self.is_main else 0.0, *asked])
        return time_now, next((int(each) for each, count in zip(StopSignal.SIGNALS, counts) if count), 0)

    def gather(self, value: Any) -> list[Any] | None:
        content = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = torch.zeros(self.world_size, dtype=torch.int64)
        sizes[self.rank] = len(content)
        self.sum_(sizes)
        longest = int(sizes.max())
        padded = torch.cat([content, torch.zeros(longest - len(content), dtype=torch.uint8)])
        parts = [torch.empty_like(padded) for _ in sizes] if self.is_main else None
        self._call(dist.gather, padded, parts)
        if parts is None:
            return None
        return [
            pickle.loads(part[:size].numpy().tobytes())
            for part, size in zip(parts, sizes.tolist(), strict=True)
        ]

    def once(self, make: Callable[[], T]) -> T:
        """Only the main process calls it, which sees files that other nodes may not; a UsageError is raised
        by all."""
        result: list[Any] = []
        if self.is_main:
            try:
                result = [make(), None]
            except UsageError as error:
                result = [None, str(error)]
        content = torch.frombuffer(bytearray(pickle.dumps(result)), dtype=torch.uint8)
        size = torch.tensor([len(content)])
        self.broadcast_(size)
        content = content if self.is_main else torch.empty(int(size), dtype=torch.uint8)
        self.broadcast_(content)
        value, refusal = pickle.loads(content.numpy().tobytes())
        if refusal is not None:
            raise UsageError(refusal)
        return value  # type: ignore[no-any-return]

    def require_equal(self, tensor: torch.Tensor, what: str) -> None:
        """Raise RunError if a tensor differs between ranks by more than the rounding of unlike processors.

        All go on with rank 0's.
        """
        reference = self.broadcast_(tensor.clone())
        differences = torch.zeros(self.world_size)
        differences[self.rank] = (tensor - reference).abs().max()
        largest = float(self.sum_(differences).max())
        rank = int(differences.argmax())
        if not largest <= ROUNDING:
            raise RunError(f"{what} of {self.names[rank]} differ from those of rank 0 by {largest:.2g}")
        if largest and self.is_main:
            logger.warning("%s of %s were %.1g off and are rank 0's again", what, self.names[rank], largest)
        tensor.copy_(reference)

    def reduction(self, sums: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Reduction:
        if self.config.overlap:
            return BucketReduction(self, sums, parameters, self.config.compression)
        if self.config.compression != "none":
            return CompressedReduction(self, sums, sum(each.numel() for each in parameters))
        return super().reduction(sums, parameters)
