"""Predictions for clusters of many sizes: how fast, how well, what costs most, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from perf.cluster_scaling.data import Data, link_name
from perf.cluster_scaling.model import Computing, Options, Prediction, Workload, ideal_fps, predict
from perf.cluster_scaling.ring import Points, link_hop

NODES = (1, 2, 4, 8, 16, 32, 64, 128)
CORES = (8, 16, 32, 64)
LINKS = ((1e10, 1e-4), (1e10, 1e-3), (1e9, 1e-4), (1e9, 1e-3))
ENVS = 16  # of a core
GROWING, FIXED, A2C, IMPALA = "PPO", "PPO, minibatches of 8,192", "A2C", "IMPALA"
KINDS = (GROWING, FIXED, A2C, IMPALA)
HALF = 0.5
AUTO = Options(reduction="auto")

# What an update's time goes to beside acting and learning.
COSTS = {
    "latency, network": "hops between nodes",
    "latency, node": "hops within nodes",
    "bytes": "bytes",
    "low rank": "computing of low ranks",
    "uneven": "waiting for the slowest",
    "crowd": "cores that slow each other",
    "small shares": "small shares of a minibatch",
    "shuffling": "shuffling",
    "gathering": "taking in figures",
    "snapshots": "snapshots",
}


@dataclass(frozen=True)
class Way:
    """A way to use or build a cluster."""

    name: str
    options: Options = AUTO
    threads: int = 1
    """Of a rank, which then has as many cores."""
    rate: float = 1.0
    delay: float = 1.0
    """Of the network, as multiples of what it is."""


AS_IT_IS = Way("as it is")
ONE_RING = Way("cluster.reduction=ring", Options())
NESTED_RINGS = Way("cluster.reduction=hierarchical", Options(reduction="hierarchical"))
# What can be set or bought today; what would have to be written.
WAYS = (
    AS_IT_IS,
    ONE_RING,
    NESTED_RINGS,
    Way("cluster.compression=bf16", replace(AUTO, compression="bf16")),
    Way("cluster.compression=powersgd", replace(AUTO, compression="powersgd")),
    Way("cluster.overlap=true", replace(AUTO, overlap=True)),
    Way("ranks of two threads on two cores", threads=2),
    Way("a network of ten times the rate", rate=10.0),
    Way("a network of a tenth of the delay", delay=0.1),
    Way("each rank shuffles its own samples", replace(AUTO, local_index=True)),
)


def workload_of(kind: str, ranks: int, envs: int = ENVS) -> Workload:
    """Return the work of every rank, in a cluster of any size.

    PPO's minibatches are an eighth of a rollout, or of a fixed size.
    """
    if kind == A2C:
        return Workload("a2c", envs, 16, None)
    if kind == IMPALA:
        return Workload("impala", envs, 32, None)
    batch = 8192 if kind == FIXED else envs * 128 * ranks // 8
    return Workload("ppo", envs, 128, batch, 4)


def with_threads(computing: Computing, threads: int, efficiency: float) -> Computing:
    """A rank of several threads, each worth `efficiency` of one that is alone."""
    faster = threads * efficiency

    def points(slow: Points) -> dict[int, float]:
        return {size: seconds / faster for size, seconds in slow.items()}

    learn = {name: points(each) for name, each in computing.learn.items()}
    return replace(computing, act=points(computing.act), learn=learn)


def costs(prediction: Prediction, ideal_learn: float) -> dict[str, float]:
    """Seconds of an update by what they go to that a core alone does not need, the names those of COSTS.

    `ideal_learn` is what a core alone takes to learn from as much.
    """
    parts = {**prediction.parts, "small shares": prediction.parts["learn"] - ideal_learn}
    return {name: max(0.0, parts[name]) for name in COSTS}


def largest_cost(prediction: Prediction, ideal_learn: float) -> str:
    """Return the name of the largest cost."""
    found = costs(prediction, ideal_learn)
    return COSTS[max(found, key=lambda name: found[name])]


def first_below(values: Sequence[tuple[int, float]], limit: float) -> int | None:
    """The smallest number of nodes whose efficiency is below `limit`; `values` are (nodes, efficiency)."""
    return next((nodes for nodes, value in sorted(values) if value < limit), None)


@dataclass(frozen=True)
class Grid:
    """The model with everything that was measured. Rates in bits per second, delays in seconds one way."""

    data: Data

    def predict(
        self, kind: str, network: str, nodes: int, cores: int, rate: float, delay: float, way: Way = AS_IT_IS
    ) -> Prediction:
        """An update of a cluster."""
        state_bytes = 0.0 if kind == IMPALA else self.data.state_bytes
        options = replace(way.options, state_bytes=state_bytes)
        ranks = nodes * cores // way.threads
        workload = workload_of(kind, ranks, ENVS * way.threads)
        computing, machine = self.data.computing(network), self.data.machine()
        if way.threads > 1:
            computing = with_threads(computing, way.threads, self.data.thread_efficiency(network))
        link = link_hop(machine.wire, rate * way.rate, delay * way.delay)
        return predict(workload, nodes, cores // way.threads, link, computing, machine, options, cores)

    def ideal_learn(self, kind: str, network: str) -> float:
        """Seconds that a core alone learns in an update."""
        workload, machine = replace(workload_of(kind, 1), batch_size=None), self.data.machine()
        alone = predict(workload, 1, 1, machine.local, self.data.computing(network), machine, busy_cores=1)
        return alone.parts["learn"]

    def ideal(self, kind: str, network: str) -> float:
        """Timesteps per second of a core alone."""
        return ideal_fps(workload_of(kind, 1), self.data.computing(network), self.data.machine())

    def efficiency(self, prediction: Prediction, kind: str, network: str, cores: int) -> float:
        """Return the speed of each core as a share of the speed of one core alone."""
        return prediction.fps / cores / self.ideal(kind, network)

    def row(
        self, kind: str, network: str, nodes: int, cores: int, rate: float, delay: float, way: Way
    ) -> dict[str, Any]:
        """One cluster: FPS, efficiency, and the seconds of an update by what they go to."""
        prediction = self.predict(kind, network, nodes, cores, rate, delay, way)
        return {
            "kind": kind,
            "network": network,
            "link": link_name(rate, delay),
            "way": way.name,
            "nodes": nodes,
            "cores": cores,
            "fps": prediction.fps,
            "efficiency": self.efficiency(prediction, kind, network, nodes * cores),
            "largest_cost": largest_cost(prediction, self.ideal_learn(kind, network)),
            "seconds": prediction.parts,
        }

    def rows(self) -> list[dict[str, Any]]:
        """All clusters, with the sums that the program chooses and with one ring."""
        return [
            self.row(kind, network, nodes, cores, rate, delay, way)
            for kind in KINDS
            for network in self.data.networks
            for rate, delay in LINKS
            for way in (AS_IT_IS, ONE_RING)
            for cores in CORES
            for nodes in NODES
        ]
