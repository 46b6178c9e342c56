"""The communicator of a distributed run: gloo, with waits that end when another rank fails."""

from __future__ import annotations

import itertools
import logging
import pickle
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rlcb.cluster.gradient_reduction import BucketReduction, CompressedReduction, LowRankReduction
from rlcb.cluster.node_group import NodeGroup
from rlcb.cluster.node_memory import NodePeers
from rlcb.cluster.power_sgd import PowerSGD
from rlcb.cluster.summation import (
    Direct,
    GroupSum,
    Hierarchy,
    Ring,
    Summation,
    SumThread,
    all_reduce_,
    sum_compressed_,
)
from rlcb.cluster.watchdog import Watchdog
from rlcb.config.settings import ClusterConfig
from rlcb.errors import PeerLost, RunError, UsageError, first_line
from rlcb.parallel import shared_sum
from rlcb.parallel.gloo import GlooCommunicator, calm_network_thread, pickled, wait_without_limit
from rlcb.parallel.shared_sum import SharedSum
from rlcb.parallel.world import World
from rlcb.processes.signals import StopSignal
from rlcb.rl.communicator import Communicator, Reduction

T = TypeVar("T")
logger = logging.getLogger(__name__)

MANY_RANKS = 256
"""Above this many ranks, compression is untested."""
SMALL_BYTES = 16_384
"""The sum of a vector up to this size takes mostly latency."""
WORDS = {
    "ring": "one ring of all ranks",
    "hierarchical": "within nodes, then between them",
    "direct": "within nodes, then directly between all",
}
"""The ways to sum."""
CLEARLY = 0.9
"""Another way than a ring is chosen if it takes at most this share of the ring's time."""
TRIALS = range(3, 30)  # of each way to sum: at least and at most
TRIAL_SECONDS = 0.3
"""Of more trials than the fewest together. If the first ones, which else only warm up, take three times as
long, they are the last."""
MAX_DIFFERENCE = 1e-4  # between parameters after 100 equal updates on different kinds of processors
CHECK_SECONDS = 0.2  # between two checks that the other ranks are alive


class ClusterCommunicator(GlooCommunicator):
    """Collective operations between the ranks of several nodes.

    When a rank fails, every operation on every rank raises the same shutdown reason, which `watch` finds:
    PeerLost, UsageError or Interrupted.
    """

    def __init__(
        self,
        store: Any,
        world: World,
        config: ClusterConfig,
        watch: Watchdog,
        node_memory: Callable[[int], tuple[Any, NodePeers]] | None = None,
    ) -> None:
        """Connect to all other ranks, which `store` tells the addresses of each other.

        `node_memory` returns so many bytes that the ranks of this node share, and the connections to them;
        without it they sum over gloo.
        """
        self.node_rank, self.num_nodes, self.node_sizes = world.node_rank, world.num_nodes, world.sizes
        self.names = watch.names
        self.config = config
        self.watch = watch
        self.node_memory = node_memory
        self.summations: dict[str, Summation] = {"gradient": Ring(), "small": Ring()}
        """How gradients are summed, and tensors of at most SMALL_BYTES."""
        self.used = dict.fromkeys(self.summations, "ring")
        """The names of these ways: those of WORDS."""
        self.sum_thread = SumThread()
        measured = ("bytes", *(f"{name}_seconds" for name in WORDS))
        self.trials: dict[str, dict[str, Any]] = {size: dict.fromkeys(measured) for size in self.summations}
        """The seconds of each way to sum vectors of so many bytes; None if they were not measured."""
        self.power_sgd: PowerSGD | None = None
        """Sums gradients between nodes in low rank, if the configuration says so."""
        # For connecting only. The watch notices a failed rank long before.
        self.connect_seconds = 10 * max(60.0, config.timeout_seconds)
        super().__init__(store, world.rank, world.size, self.connect_seconds)
        wait_without_limit()

    def _connect(self, meet: Callable[[], None]) -> None:
        self.wait_for_peers(meet)

    def wait_for_peers(self, function: Callable[[], T]) -> T:
        """Return the result of `function`, which waits for other ranks.

        It runs in a thread while this one checks that the other ranks are alive. Raises what `function`
        raises, and the shutdown reason.
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
                thread.join(CHECK_SECONDS)
                self.watch.check()
        if failure and isinstance(failure[0], RuntimeError):  # gloo raises it for a closed connection
            raise self.watch.agree(PeerLost(first_line(failure[0]))) from failure[0]
        if failure:
            raise failure[0]
        return result[0]

    def _call(self, operation: Any, *arguments: Any, **options: Any) -> None:
        self.wait(self.begin(operation, *arguments, **options))

    def begin(self, operation: Any, *arguments: Any, **options: Any) -> Any:
        """Start an operation in the background and return the handle that `wait` takes."""
        try:
            return operation(*arguments, **options, async_op=True)
        except RuntimeError as error:
            raise self.watch.agree(PeerLost(first_line(error))) from error

    def wait(self, work: Any) -> None:
        """Wait until a started operation is done. Raises the shutdown reason if a rank fails."""
        with self.watch.waiting():
            while True:
                try:
                    work.wait(timedelta(seconds=CHECK_SECONDS))
                    return
                except RuntimeError:  # not done yet, or failed
                    if work.is_completed():
                        break
                self.watch.check()
            try:
                work.wait()  # it may have finished just when the time-out ended
            except RuntimeError as error:
                raise self.watch.agree(PeerLost(first_line(error))) from error

    def begin_sum(self, tensor: torch.Tensor, between: GroupSum = all_reduce_) -> Any:
        """Start the sum of a tensor over all ranks, in place, and return the handle that `wait` takes.

        `between` makes the part of the sum that crosses nodes.
        """
        way = self.summations["small" if tensor.nbytes <= SMALL_BYTES else "gradient"]
        return self._begin_sum(way, tensor, between)

    def _begin_sum(self, way: Summation, tensor: torch.Tensor, between: GroupSum) -> Any:
        if isinstance(way, Ring) and self.config.compression == "none":
            return self.begin(dist.all_reduce, tensor)  # not if sums in the thread could overtake it
        return self.sum_thread.submit(partial(way.sum_, tensor, between))

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        self.wait(self.begin_sum(tensor))
        return tensor

    def boundary(self, elapsed: float, signal_number: int) -> tuple[float, int]:
        asked = [float(signal_number == each) for each in StopSignal.SIGNALS]
        time_now, *counts = self.sum_floats([elapsed if self.is_main else 0.0, *asked])
        return time_now, next((int(each) for each, count in zip(StopSignal.SIGNALS, counts) if count), 0)

    def gather(self, value: Any) -> list[Any] | None:
        # Not dist.gather_object: it cannot be started in the background, so nothing could end its wait.
        content = torch.frombuffer(bytearray(pickled(value)), dtype=torch.uint8)
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
        """Call `make` on rank 0 only, which may see files that other nodes do not; return its result on all.

        A UsageError that `make` raises is raised on all ranks.
        """
        result: list[Any] = []
        if self.is_main:
            try:
                result = [make(), None]
            except UsageError as error:
                result = [None, str(error)]
        content = torch.frombuffer(bytearray(pickled(result)), dtype=torch.uint8)
        size = torch.tensor([len(content)])
        self.broadcast_(size)
        content = content if self.is_main else torch.empty(int(size), dtype=torch.uint8)
        self.broadcast_(content)
        value, refusal = pickle.loads(content.numpy().tobytes())
        if refusal is not None:
            raise UsageError(refusal)
        return value  # type: ignore[no-any-return]

    def require_equal(self, tensor: torch.Tensor, what: str) -> None:
        """Raise RunError if `tensor` differs between ranks by more than floating-point error.

        Ranks on different kinds of processors do differ by floating-point error: all take rank 0's values.
        """
        reference = self.broadcast_(tensor.clone())
        differences = torch.zeros(self.world_size)
        differences[self.rank] = (tensor - reference).abs().max()
        largest = float(self.sum_(differences).max())
        rank = int(differences.argmax())
        if not largest <= MAX_DIFFERENCE:
            raise RunError(f"{what} of {self.names[rank]} differ from those of rank 0 by {largest:.2g}")
        if largest and self.is_main:
            logger.warning(
                "%s of %s differed by %.1g and were reset to those of rank 0", what, self.names[rank], largest
            )
        tensor.copy_(reference)

    def choose_summation(self, sums: torch.Tensor, between: GroupSum = all_reduce_) -> None:
        """Sum as `cluster.reduction` says from now on. `auto` measures all ways: with a vector like `sums`,
        for which `between` makes the part that crosses nodes, and with a few numbers."""
        ways = self._connect_ways(sums.nbytes)
        if self.config.reduction != "auto":
            self.use(dict.fromkeys(self.used, self.config.reduction), ways)
        elif len(ways) > 1:
            vectors = {"gradient": (torch.zeros_like(sums), between), "small": (torch.zeros(8), all_reduce_)}
            used = {}
            for size, (vector, add) in vectors.items():
                seconds = self._time_sums(vector, ways, add)
                self.trials[size] |= {"bytes": vector.nbytes}
                self.trials[size] |= {f"{name}_seconds": value for name, value in seconds.items()}
                fastest = min(seconds, key=lambda name: seconds[name])
                used[size] = fastest if seconds[fastest] <= CLEARLY * seconds["ring"] else "ring"
            self.use(used, ways)

    def use(self, used: Mapping[str, str], ways: Mapping[str, Summation]) -> None:
        """Sum gradients and small tensors in the ways with these names from now on."""
        self.used = dict(used)
        self.summations = {size: ways[name] for size, name in used.items()}

    def _connect_ways(self, vector_bytes: int) -> dict[str, Summation]:
        """Return the ways to sum vectors of at most so many bytes that the configuration allows, and that
        differ on these nodes."""
        wanted, ways = self.config.reduction, dict[str, Summation](ring=Ring())
        several = max(self.node_sizes) > 1
        if wanted == "hierarchical" or (several and wanted != "ring"):
            hierarchy = self._connect_hierarchy()
            self.share_sums(hierarchy, vector_bytes)
            ways["hierarchical"] = hierarchy
            if wanted == "direct" or self.num_nodes > 1:
                ways["direct"] = hierarchy.directly()
        elif wanted == "direct" or (wanted == "auto" and self.num_nodes > 1):
            ways["direct"] = Direct()
        return ways

    def _connect_hierarchy(self) -> Hierarchy:
        """Return the way to sum within nodes first."""
        ends = list(itertools.accumulate(self.node_sizes))
        nodes = [range(end - size, end) for size, end in zip(self.node_sizes, ends, strict=True)]
        timeout = timedelta(seconds=self.connect_seconds)
        hierarchy = self.wait_for_peers(partial(Hierarchy, self.rank, nodes, timeout))
        calm_network_thread()
        return hierarchy

    def share_sums(self, hierarchy: Hierarchy, vector_bytes: int) -> None:
        """Let the ranks of this node sum vectors of at most so many bytes through memory that they share, if
        there are several and the system can."""
        if self.node_memory is None or self.local_size == 1 or not shared_sum.is_available():
            return
        memory, peers = self.node_memory(shared_sum.memory_bytes(self.local_size, vector_bytes))
        hierarchy.shared = SharedSum(memory, self.local_rank, self.local_size)
        hierarchy.check = peers.check

    def learners(self) -> Communicator:
        if self.config.average_every is None:
            return self
        hierarchy = self._connect_hierarchy()
        if self.config.reduction == "direct":
            self.use(dict.fromkeys(self.used, "direct"), {"direct": hierarchy.directly()})
        elif self.config.reduction != "ring":  # averages have the size of gradients
            self.use({**self.used, "gradient": "hierarchical"}, {"ring": Ring(), "hierarchical": hierarchy})
        return NodeGroup(self, hierarchy)

    def _time_sums(
        self, vector: torch.Tensor, ways: Mapping[str, Summation], between: GroupSum
    ) -> dict[str, float]:
        """Return the median seconds of a sum of the vector by way, equal on all ranks."""
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        used, rounds = 0.0, 0
        while True:
            for name, way in ways.items():
                self.barrier()
                start = time.perf_counter()
                self.wait(self._begin_sum(way, vector, between))
                seconds[name].append(time.perf_counter() - start)
            rounds += 1
            used += self.from_main(sum(found[-1] for found in seconds.values()))
            if rounds == 1 and used > 3 * TRIAL_SECONDS:
                break
            if rounds > TRIALS.start and (used > TRIAL_SECONDS or rounds > TRIALS.stop):
                break
        kept = slice(rounds > 1, None)
        medians = [self.from_main(statistics.median(found[kept])) for found in seconds.values()]
        return {name: round(median, 6) for name, median in zip(ways, medians, strict=True)}

    def facts(self) -> dict[str, str]:
        if self.config.average_every is not None:
            return {"gradient sums": "within nodes"}
        gradient, small = self.metrics()["reduction"].values()
        text = WORDS[gradient["used"]]
        if gradient["bytes"] is not None:
            text += f" (measured: {_in_words(gradient)}); "
            text += f"few numbers: {WORDS[small['used']]} ({_in_words(small)})"
        low_rank = {} if self.power_sgd is None else {"compression": self.power_sgd.describe()}
        return {"gradient sums": text, **low_rank}

    def metrics(self) -> dict[str, Any]:
        return {"reduction": {size: {"used": self.used[size], **self.trials[size]} for size in self.used}}

    def reduction(self, sums: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Reduction:
        rank = self.config.powersgd_rank
        between: GroupSum = all_reduce_ if self.config.compression == "none" else sum_compressed_
        if rank is not None:
            between = PowerSGD(parameters, rank, len(sums)).sum_  # another one learns: the trials change it
        self.choose_summation(sums, between)
        if self.config.compression != "none" and self.world_size > MANY_RANKS and self.is_main:
            logger.warning(
                "cluster.compression = %s with %d ranks: more than %d are untested, compare with none",
                *(self.config.compression, self.world_size, MANY_RANKS),
            )
        if self.config.overlap:
            return BucketReduction(self, sums, parameters, self.config.compression)
        if rank is not None:
            self.power_sgd = PowerSGD(parameters, rank, len(sums))
            return LowRankReduction(self, sums, self.power_sgd)
        if self.config.compression != "none":
            return CompressedReduction(self, sums, sum(each.numel() for each in parameters))
        return super().reduction(sums, parameters)


def _in_words(trial: dict[str, Any]) -> str:
    names = {"ring": "ring", "hierarchical": "within nodes first", "direct": "directly"}
    found = {text: trial[f"{name}_seconds"] for name, text in names.items()}
    return ", ".join(f"{text} {1e3 * value:.3g} ms" for text, value in found.items() if value is not None)
