"""How long gloo's all-reduce should take, from what a hop from one process to the next takes.

All times are in seconds, sizes in bytes, rates in bytes per second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

# What of a link carries payload: 1,448 of the 1,538 bytes that a frame takes on an Ethernet.
PAYLOAD_SHARE = 1448 / 1538

Points = Mapping[int, float]


@dataclass(frozen=True)
class Hop:
    """From one process to the next: seconds until a short message has woken the other, bytes per second."""

    latency: float
    bandwidth: float


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
    return Hop(wire.latency + 2 * delay, 1 / (1 / wire.bandwidth + 1 / rate))


def fit_hop(seconds: Points) -> Hop:
    """From the times of an all-reduce between two ranks by size: 2 latencies and the bytes once."""
    small, large = min(seconds), max(seconds)
    return Hop(seconds[small] / 2, (large - small) / max(1e-9, seconds[large] - seconds[small]))


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
