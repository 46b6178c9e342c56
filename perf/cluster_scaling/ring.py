"""How long sums over ranks should take, from what a hop from one process to the next takes.

All times are in seconds, sizes in bytes, rates in bytes per second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlcb.cluster.summation import SHORT_BYTES

# What of a link carries payload: 1,448 of the 1,538 bytes that a frame takes on an Ethernet.
PAYLOAD_SHARE = 1448 / 1538

Points = Mapping[int, float]


@dataclass(frozen=True)
class Hop:
    """From one process to the next: seconds until a short message has woken the other, bytes per second."""

    latency: float
    """Of gloo's all-reduce, which sends when the receiver has said that it expects something."""
    bandwidth: float
    direct: float = math.inf
    """The same for direct messages, which are expected before they are sent; `delay` is in it once."""
    delay: float = 0.0
    """Until the first word of a receiver arrives."""


@dataclass(frozen=True)
class Sharing:
    """The times of a node's processes that work on shared memory."""

    meeting: float
    """Seconds until two processes that wait for each other go on."""
    bandwidth: float
    """Bytes per second of a core that adds vectors, all cores busy."""


def link_hop(wire: Hop, bits_per_second: float, delay: float) -> Hop:
    """A link of a rate and of a delay in one direction; `wire` is what the software takes without them.

    Gloo sends a segment when the receiver has said that it expects it, so a hop takes a round trip. A process
    does not copy and add what it has received while it waits for more, so both times for the bytes add up.
    """
    rate = PAYLOAD_SHARE * bits_per_second / 8
    bandwidth = 1 / (1 / wire.bandwidth + 1 / rate)
    return Hop(wire.latency + 2 * delay, bandwidth, wire.direct + delay, delay)


def fit_hop(seconds: Points, direct: Points | None = None, delay: float = 0.0) -> Hop:
    """From the times of sums between two ranks by size. Gloo's all-reduce: 2 latencies and the bytes once.
    `direct`: a short sum is one hop."""
    small, large = min(seconds), max(seconds)
    bandwidth = (large - small) / max(1e-9, seconds[large] - seconds[small])
    hop = math.inf if direct is None else max(0.0, direct[min(direct)] - delay)
    return Hop(seconds[small] / 2, bandwidth, hop, delay)


def ring_parts(size: float, nodes: int, per_node: int, network: Hop, local: Hop) -> dict[str, float]:
    """Gloo's all-reduce: a ring through all ranks, node by node, that a message passes twice.

    A rank owns 1 / ranks of the message, in two segments that follow each other. In each of the two passes a
    segment goes over ranks - 1 hops, and every hop has to carry all segments but its owner's. The slower of
    both decides, and the last segment comes behind the one before it.
    """
    ranks = nodes * per_node
    if ranks == 1:
        return {"latency, network": 0.0, "latency, node": 0.0, "bytes": 0.0}
    across = nodes if nodes > 1 else 0
    within = ranks - across
    segment = size / (2 * ranks)
    out, on = segment / network.bandwidth, segment / local.bandwidth
    slowest = max(out if across else 0.0, on if within else 0.0)
    passed = (ranks - 1) / ranks
    latency_network = passed * across * network.latency
    latency_node = passed * within * local.latency
    path = latency_network + latency_node + passed * (across * out + within * on)
    last = min(network.latency if across else local.latency, slowest)
    whole = max(path, 2 * (ranks - 1) * slowest) + last
    return {
        "latency, network": 2 * latency_network,
        "latency, node": 2 * latency_node,
        "bytes": 2 * (whole - latency_network - latency_node),
    }


def hierarchical_parts(
    size: float, nodes: int, per_node: int, network: Hop, local: Hop, sharing: Sharing
) -> dict[str, float]:
    """Within a node every rank adds its share of all ranks' vectors in shared memory; then a ring of nodes.

    The vector is read once as shares of all ranks and once as the result; the node's ranks wait for each
    other three times, in as many rounds as they can be halved.
    """
    return add(ring_parts(size, nodes, 1, network, local), node_parts(size, per_node, sharing))


def direct_parts(
    size: float, nodes: int, per_node: int, network: Hop, sharing: Sharing, most: float = SHORT_BYTES
) -> dict[str, float]:
    """Within nodes in shared memory, then in direct messages between nodes.

    Short vectors are collected in the logarithm of n hops. Long ones are exchanged in halves and collected,
    twice as many hops; if n is no power of two, whole vectors go to other nodes and come back. The first
    message waits until the other one is known to expect it.
    """
    parts = node_parts(size, per_node, sharing)
    if nodes == 1:
        return parts
    power = nodes.bit_length() - 1
    if nodes * size <= most:
        hops, numbers = (nodes - 1).bit_length(), (nodes - 1) * size
    else:
        rest = 0 if nodes == 1 << power else 2
        hops, numbers = 2 * power + rest, (2 * (1 - 0.5**power) + rest) * size
    latency = hops * network.direct + network.delay
    return add(
        parts, {"latency, network": latency, "latency, node": 0.0, "bytes": numbers / network.bandwidth}
    )


def compressed_parts(
    size: float, nodes: int, per_node: int, network: Hop, sharing: Sharing
) -> dict[str, float]:
    """A sum in bfloat16 of a vector of `size` bytes in float32: every node sends parts to every other one,
    and later their sums, one message behind the other."""
    parts = node_parts(size, per_node, sharing)
    if nodes == 1:
        return parts
    latency = 2 * ((nodes - 1) * (network.direct - network.delay) + network.delay) + network.delay
    seconds = 2 * (nodes - 1) / nodes * size / 2 / network.bandwidth
    return add(parts, {"latency, network": latency, "latency, node": 0.0, "bytes": seconds})


def node_parts(size: float, per_node: int, sharing: Sharing) -> dict[str, float]:
    """The part of a hierarchical sum in shared memory."""
    if per_node == 1:
        return {"latency, network": 0.0, "latency, node": 0.0, "bytes": 0.0}
    meetings = 3 * math.ceil(math.log2(per_node)) * sharing.meeting
    return {"latency, network": 0.0, "latency, node": meetings, "bytes": 2 * size / sharing.bandwidth}


def nested_ring_parts(size: float, nodes: int, per_node: int, network: Hop, local: Hop) -> dict[str, float]:
    """A hierarchical sum without shared memory: gloo sums to the first rank of each node, these
    ranks make a ring, and gloo broadcasts the result in each node.

    Gloo's sum to one rank is half a ring and a gathering of the segments; its broadcast is a tree.
    """
    parts = ring_parts(size, nodes, 1, network, local)
    if per_node > 1:
        rounds = math.ceil(math.log2(per_node))
        parts["latency, node"] += (per_node - 1 + 1 + rounds) * local.latency
        parts["bytes"] += (2 * (per_node - 1) / per_node + rounds) * size / local.bandwidth
    return parts


def add(one: Mapping[str, float], other: Mapping[str, float], times: float = 1.0) -> dict[str, float]:
    """The sums of two mappings with the same names, the second one several times."""
    return {name: value + times * other[name] for name, value in one.items()}
