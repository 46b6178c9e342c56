"""What an update over several nodes should take, from pieces that were measured on one machine.

Nothing here measures anything. All times are in seconds, sizes in bytes, rates in bytes per second.
`predict` says where the time of an update goes; docs/scaling.md tells the same in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Literal

from perf.cluster_scaling.ring import (
    Hop,
    Points,
    Sharing,
    add,
    compressed_parts,
    direct_parts,
    hierarchical_parts,
    node_parts,
    ring_parts,
)

BACKWARD_SHARE = 2 / 3  # of forward and backward pass together
BUSY = ("act", "learn", "rest", "low rank", "crowd")  # the parts of an update in which a core computes
SMALL_BYTES = 32  # of the sums of a few numbers that come between the gradients
CLEARLY = 0.9  # of a ring's time, which another way to sum may take to be chosen
MOMENT_BYTES = 24  # of what a node tells of the advantages of its part of a minibatch: three numbers


@dataclass(frozen=True)
class Machine:
    """The measurements of a node, without its network."""

    local: Hop
    """Between two processes of one node."""
    wire: Hop
    """Between two nodes on a link that neither delays nor limits: what the software takes."""
    sharing: Sharing
    gather_seconds: float
    """For each rank whose figures rank 0 takes in."""
    index_seconds: Points
    """Timesteps of all nodes -> seconds to shuffle them and find one's own."""
    hidden_share: float
    """What of an all-reduce, or of computing if that is shorter, both at the same time save."""
    measured_cores: int
    """Cores that were busy while the computing was measured."""


@dataclass(frozen=True)
class LowRank:
    """What PowerSGD sends in the two sums of a gradient, and how long a core computes for them."""

    first_bytes: int
    second_bytes: int
    seconds: float


@dataclass(frozen=True)
class Computing:
    """The measurements of a neural network on one core while all cores are busy."""

    parameters: int
    act: Points
    """Environments of a process -> seconds of one step of all of them, the network included."""
    learn: Mapping[str, Points]
    """Algorithm -> samples -> seconds of an optimiser step on them; A2C reuses the passes of acting."""
    rest: Mapping[str, float]
    """Algorithm -> seconds of an update for each of its rows: advantages, scaling, bookkeeping."""
    beta: float
    """By what share each further busy core of a node slows the others."""
    late_bytes: float
    """Of the gradient's last bucket, which overlap does not hide."""
    noise: float
    """Standard deviation of the time of equal optimiser steps, as a share of their mean."""
    microbatch: int
    low_rank: LowRank

    @property
    def gradient_bytes(self) -> int:
        return 4 * self.parameters


@dataclass(frozen=True)
class Workload:
    """The work of a rank in an update, and the size of one minibatch over all ranks."""

    algorithm: str
    envs: int
    """Of a rank."""
    n_steps: int
    batch_size: int | None
    """Of all ranks; None: all that was collected."""
    epochs: int = 1

    @property
    def samples(self) -> int:
        """Timesteps of a rank in an update."""
        return self.envs * self.n_steps


@dataclass(frozen=True)
class Options:
    """How gradients are summed. The program does not have `local_index`."""

    overlap: bool = False
    compression: Literal["none", "bf16", "powersgd"] = "none"
    reduction: Literal["ring", "hierarchical", "direct", "auto"] = "ring"
    """hierarchical, direct: sums within a node in shared memory; one rank of each node talks to other nodes.
    auto: the fastest, for vectors of each size; a ring, unless another one is clearly faster."""
    local_index: bool = False
    """Whether a rank shuffles only its own samples."""
    state_bytes: float = 0.0
    """Of an environment, which travels to rank 0 for each snapshot; 0: none is taken."""
    snapshot_interval: float = 30.0


@dataclass(frozen=True)
class Prediction:
    """An update: its timesteps, and its seconds by what they go to."""

    timesteps: int
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def fps(self) -> float:
        return self.timesteps / self.seconds

    def share(self, *names: str) -> float:
        """Return the share of an update's time that the named parts take."""
        return sum(self.parts[name] for name in names) / self.seconds


def interpolate(points: Points, size: float) -> float:
    """Linear between the sizes that were measured, and on in a straight line beyond the largest."""
    sizes = sorted(points)
    upper = next((each for each in sizes[1:] if each >= size), sizes[-1])
    lower = sizes[sizes.index(upper) - 1] if len(sizes) > 1 else sizes[0]
    if lower == upper:
        return points[lower] * size / lower
    slope = (points[upper] - points[lower]) / (upper - lower)
    return points[lower] + slope * (size - lower)


def expected_maximum(count: int) -> float:
    """By how many standard deviations the largest of `count` normal numbers is expected to exceed their mean.

    Blom's approximation (1958) of the largest order statistic.
    """
    return 0.0 if count < 2 else NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def gradient_parts(
    computing: Computing,
    machine: Machine,
    nodes: int,
    per_node: int,
    network: Hop,
    options: Options,
    backward: float,
) -> dict[str, float]:
    """One sum of the gradient; `backward` is how long the last backward pass of a minibatch takes.

    With overlap all but the last bucket travels while that pass goes on, which takes gloo's threads from it.
    """
    if options.compression == "powersgd":
        return low_rank_parts(computing, machine, nodes, per_node, network, options)
    late = computing.late_bytes if options.overlap else 0.0
    place = nodes, per_node, network, machine, options
    summed = compressed_sum_parts if options.compression == "bf16" else sum_parts
    parts = summed(computing.gradient_bytes - late, *place)
    if options.overlap:
        whole = max(1e-12, sum(parts.values()))
        left = 1 - machine.hidden_share * min(1.0, backward / whole)
        parts = {name: value * left for name, value in parts.items()}
        parts = add(parts, summed(late, *place))
    if options.overlap or options.compression == "bf16":  # the statistics go by themselves
        parts = add(parts, sum_parts(SMALL_BYTES, *place))
    return parts


def low_rank_parts(
    computing: Computing, machine: Machine, nodes: int, per_node: int, network: Hop, options: Options
) -> dict[str, float]:
    """PowerSGD's two sums: over all ranks, or between nodes that have summed whole gradients within."""
    first, second = computing.low_rank.first_bytes, computing.low_rank.second_bytes
    within = node_parts(computing.gradient_bytes, per_node, machine.sharing)

    def parts_of(way: str) -> dict[str, float]:
        if way == "ring":
            one, other = (
                ring_parts(size, nodes, per_node, network, machine.local) for size in (first, second)
            )
            return add(one, other)
        if nodes == 1:
            return within
        one, other = (way_parts(way, size, nodes, 1, network, machine) for size in (first, second))
        return add(within, add(one, other))

    return fastest(options, parts_of)


def sum_parts(
    size: float, nodes: int, per_node: int, network: Hop, machine: Machine, options: Options
) -> dict[str, float]:
    """An exact sum as it is done with these options."""
    return fastest(options, lambda way: way_parts(way, size, nodes, per_node, network, machine))


def compressed_sum_parts(
    size: float, nodes: int, per_node: int, network: Hop, machine: Machine, options: Options
) -> dict[str, float]:
    """A sum in bfloat16 as it is done with these options: over all ranks, or between nodes."""

    def parts_of(way: str) -> dict[str, float]:
        if way == "ring":
            return compressed_parts(size, nodes * per_node, 1, network, machine.sharing)
        return compressed_parts(size, nodes, per_node, network, machine.sharing)

    return fastest(options, parts_of)


def way_parts(
    way: str, size: float, nodes: int, per_node: int, network: Hop, machine: Machine
) -> dict[str, float]:
    """An exact sum in one of the ways `ring`, `hierarchical` and `direct`."""
    if way == "ring":
        return ring_parts(size, nodes, per_node, network, machine.local)
    if way == "hierarchical":
        return hierarchical_parts(size, nodes, per_node, network, machine.local, machine.sharing)
    return direct_parts(size, nodes, per_node, network, machine.sharing)


def fastest(options: Options, parts_of: Callable[[str], dict[str, float]]) -> dict[str, float]:
    """Return the parts of the way to sum that the options say; `auto` chooses as the program does."""
    if options.reduction != "auto":
        return parts_of(options.reduction)
    ring = parts_of("ring")
    best = min((parts_of(way) for way in ("hierarchical", "direct")), key=lambda parts: sum(parts.values()))
    return best if sum(best.values()) <= CLEARLY * sum(ring.values()) else ring


def minibatches(workload: Workload, ranks: int) -> int:
    """The number of minibatches of an update."""
    total = workload.samples * ranks
    return workload.epochs * math.ceil(total / (workload.batch_size or total))


def small_sums(workload: Workload, nodes: int) -> int:
    """All-reduces of a few numbers in an update, as the programs call them.

    PPO and A2C: two barriers, the reward statistics, the explained variance (over several nodes), the sizes
    of what is gathered and the clock. IMPALA: the reward statistics, the slots, the sizes and the clock.
    """
    if workload.algorithm == "impala":
        return 4
    return 5 + (1 if nodes > 1 else 0)


def small_parts(
    workload: Workload, nodes: int, per_node: int, network: Hop, machine: Machine, options: Options
) -> dict[str, float]:
    """All sums of an update but those of gradients: of a few numbers, and over several nodes one in each of
    PPO's epochs, of the mean and the spread of the advantages of all its minibatches."""
    small = sum_parts(SMALL_BYTES, nodes, per_node, network, machine, options)
    parts = {name: small_sums(workload, nodes) * value for name, value in small.items()}
    if workload.algorithm == "ppo" and nodes > 1:
        size = MOMENT_BYTES * nodes * minibatches(workload, nodes * per_node) / workload.epochs
        moments = sum_parts(size, nodes, per_node, network, machine, options)
        parts = add(parts, moments, workload.epochs)
    return parts


def largest_share(workload: Workload, nodes: int, per_node: int) -> float:
    """Samples that the rank with most of them is expected to have of a minibatch.

    A minibatch is drawn from all nodes' samples; a node's part is hypergeometric, and its ranks share it.
    A2C and IMPALA learn from everything, so all have as many.
    """
    ranks = nodes * per_node
    total = workload.samples * ranks
    batch = workload.batch_size or total
    if batch >= total:
        return batch / ranks
    variance = batch / nodes * (1 - 1 / nodes) * (total - batch) / max(1, total - 1)
    node_shard = batch / nodes + expected_maximum(nodes) * math.sqrt(variance)
    return (node_shard + (per_node - 1) / 2) / per_node


def shuffling(workload: Workload, total: int, machine: Machine, options: Options) -> float:
    """Every rank of PPO shuffles the numbers of all samples anew each epoch, one of A2C counts them once."""
    if workload.algorithm == "impala":
        return 0.0
    return workload.epochs * interpolate(
        machine.index_seconds, workload.samples if options.local_index else total
    )


def predict(
    workload: Workload,
    nodes: int,
    per_node: int,
    network: Hop,
    computing: Computing,
    machine: Machine,
    options: Options = Options(),
    busy_cores: int | None = None,
) -> Prediction:
    """One update of `nodes` x `per_node` ranks of one core each.

    `busy_cores` is how many cores of a machine compute at the same time, `per_node` unless "nodes" share one.
    """
    ranks = nodes * per_node
    alone = 1 / (1 + computing.beta * (machine.measured_cores - 1))  # of what was measured
    slower = 1 + computing.beta * ((busy_cores or per_node) - 1)
    steps = computing.learn[workload.algorithm]
    count, total = minibatches(workload, ranks), workload.samples * ranks
    share, most = (workload.batch_size or total) / ranks, largest_share(workload, nodes, per_node)
    act = alone * workload.n_steps * interpolate(computing.act, workload.envs)
    learn = alone * count * interpolate(steps, share)
    uneven = alone * count * (interpolate(steps, most) - interpolate(steps, share))
    rest = alone * workload.n_steps * computing.rest[workload.algorithm]
    summing = nodes > 1 or (ranks > 1 and options.reduction == "ring")
    low_rank = alone * count * computing.low_rank.seconds * (options.compression == "powersgd" and summing)
    last = alone * (interpolate(steps, min(share, computing.microbatch)) - interpolate(steps, 0))
    gradient = gradient_parts(
        computing, machine, nodes, per_node, network, options, BACKWARD_SHARE * slower * last
    )
    small = small_parts(workload, nodes, per_node, network, machine, options)
    noise = computing.noise * expected_maximum(ranks)
    parts = {
        "act": act,
        "learn": learn,
        "rest": rest,
        "low rank": low_rank,
        "crowd": (slower - 1) * (act + learn + rest + low_rank),
        "shuffling": shuffling(workload, total, machine, options),
        "uneven": slower * (math.hypot(uneven, noise * (learn + uneven)) + noise * act),
        **add(small, gradient, count),
        "gathering": machine.gather_seconds * (ranks - 1),
    }
    if workload.algorithm == "impala":  # actors go on meanwhile, but gloo's threads want their cores
        waiting = sum(value for name, value in parts.items() if name not in BUSY)
        parts["act"] -= machine.hidden_share * min(act, waiting)
    snapshot = options.state_bytes * workload.envs * ranks / min(network.bandwidth, machine.local.bandwidth)
    before = sum(parts.values())
    parts["snapshots"] = snapshot * before / max(before, options.snapshot_interval)
    return Prediction(total, parts)


def ideal_fps(workload: Workload, computing: Computing, machine: Machine) -> float:
    """Timesteps per second of a core that is alone and learns from its own rollout, all of it in one step."""
    alone = replace(workload, batch_size=None)
    free = Hop(0.0, math.inf)
    return predict(alone, 1, 1, free, computing, machine, busy_cores=1).fps
