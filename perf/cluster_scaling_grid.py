"""Predictions for clusters of many sizes: how fast, how well, what costs most, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from perf.cluster_scaling_data import Data, link_name
from perf.cluster_scaling_model import Options, Prediction, Workload, efficiency, ideal_fps, predict
from perf.cluster_scaling_ring import Hop, link_hop

NODES = (2, 4, 8, 16, 32, 64, 128)
CORES = (8, 16, 32, 64)
LINKS = ((1e10, 1e-4), (1e10, 1e-3), (1e9, 1e-4), (1e9, 1e-3))
ENVS = 16  # of a core
GROWING, FIXED, A2C, IMPALA = "PPO", "PPO, minibatches of 8,192", "A2C", "IMPALA"
KINDS = (GROWING, FIXED, A2C, IMPALA)
HALF = 0.5
AS_IT_IS = Options()
ALL = Options(hierarchical=True, small_sums=False, local_index=True)
YIELD = "gloo's network threads yield"

# What an update's time goes to beside acting and learning.
COSTS = {
    "latency, network": "hops between nodes",
    "latency, node": "hops within nodes",
    "bytes": "bytes",
    "uneven": "waiting for the slowest",
    "small shares": "small shares of a minibatch",
    "shuffling": "shuffling",
    "gathering": "taking in figures",
    "snapshots": "snapshots",
}


def workload_of(kind: str, ranks: int) -> Workload:
    """What every core does, in a cluster of any size. PPO's minibatches are an eighth of a rollout, or
    of a fixed size."""
    if kind == A2C:
        return Workload("a2c", ENVS, 16, None)
    if kind == IMPALA:
        return Workload("impala", ENVS, 32, None)
    batch = 8192 if kind == FIXED else ENVS * 128 * ranks // 8
    return Workload("ppo", ENVS, 128, batch, 4)


def costs(prediction: Prediction, ideal_learn: float) -> dict[str, float]:
    """Seconds of an update by what they go to that a core alone does not need, the names those of COSTS.

    `ideal_learn` is what a core alone takes to learn from as much.
    """
    parts = {**prediction.parts, "small shares": prediction.parts["learn"] - ideal_learn}
    return {name: max(0.0, parts[name]) for name in COSTS}


def largest_cost(prediction: Prediction, ideal_learn: float) -> str:
    """In words."""
    found = costs(prediction, ideal_learn)
    return COSTS[max(found, key=lambda name: found[name])]


def first_below(values: Sequence[tuple[int, float]], limit: float) -> int | None:
    """The smallest number of nodes whose efficiency is below `limit`; `values` are (nodes, efficiency)."""
    return next((nodes for nodes, value in sorted(values) if value < limit), None)


@dataclass(frozen=True)
class Grid:
    """The model with everything that was measured."""

    data: Data

    def predict(
        self,
        kind: str,
        network: str,
        nodes: int,
        cores: int,
        link: Hop,
        options: Options = AS_IT_IS,
        yielding: bool = False,
    ) -> Prediction:
        """An update of a cluster; `yielding`: gloo's network threads have the lowest priority."""
        options = replace(options, state_bytes=0.0 if kind == IMPALA else self.data.state_bytes)
        workload = workload_of(kind, nodes * cores)
        computing, machine = self.data.computing(network), self.data.machine(yielding)
        return predict(workload, nodes, cores, link, computing, machine, options)

    def link(self, rate: float, delay: float, yielding: bool = False) -> Hop:
        """A link of so many bits per second and seconds one way."""
        return link_hop(self.data.machine(yielding).wire, rate, delay)

    def ideal_learn(self, kind: str, network: str) -> float:
        """Seconds that a core alone learns in an update."""
        workload = replace(workload_of(kind, 1), batch_size=None)
        machine = self.data.machine()
        return predict(
            workload, 1, 1, machine.local, self.data.computing(network), machine, busy_cores=1
        ).parts["learn"]

    def ideal(self, kind: str, network: str) -> float:
        """Timesteps per second of a core alone."""
        return ideal_fps(workload_of(kind, 1), self.data.computing(network), self.data.machine())

    def row(
        self, kind: str, network: str, nodes: int, cores: int, rate: float, delay: float
    ) -> dict[str, Any]:
        """One cluster: FPS, efficiency, and the seconds of an update by what they go to."""
        prediction = self.predict(kind, network, nodes, cores, self.link(rate, delay))
        computing, machine = self.data.computing(network), self.data.machine()
        ranks = nodes * cores
        return {
            "kind": kind,
            "network": network,
            "link": link_name(rate, delay),
            "nodes": nodes,
            "cores": cores,
            "fps": prediction.fps,
            "efficiency": efficiency(prediction, workload_of(kind, ranks), ranks, computing, machine),
            "largest_cost": largest_cost(prediction, self.ideal_learn(kind, network)),
            "seconds": prediction.parts,
        }

    def rows(self) -> list[dict[str, Any]]:
        """All clusters."""
        return [
            self.row(kind, network, nodes, cores, rate, delay)
            for kind in KINDS
            for network in self.data.networks
            for rate, delay in LINKS
            for cores in CORES
            for nodes in NODES
        ]

    def remedies(
        self, kind: str, network: str, nodes: int, cores: int, rate: float, delay: float
    ) -> dict[str, float]:
        """What would help -> timesteps per second: each alone, then what has to be built all together."""
        link, slower = self.link(rate, delay), self.link(rate, delay, yielding=True)
        changes: dict[str, tuple[Hop, Options, bool]] = {
            "as it is": (link, AS_IT_IS, False),
            "cluster.compression=bf16": (link, Options(compression=True), False),
            "cluster.overlap=true": (link, Options(overlap=True), False),
            "a network of ten times the rate": (self.link(10 * rate, delay), AS_IT_IS, False),
            "a network of a tenth of the delay": (self.link(rate, delay / 10), AS_IT_IS, False),
            YIELD: (slower, AS_IT_IS, True),
            "sums within nodes, then between nodes": (link, Options(hierarchical=True), False),
            "no sums for a minibatch's advantages": (link, Options(small_sums=False), False),
            "each rank shuffles its own samples": (link, Options(local_index=True), False),
            "the last four together": (slower, ALL, True),
        }
        return {
            name: self.predict(kind, network, nodes, cores, hop, options, yielding).fps
            for name, (hop, options, yielding) in changes.items()
        }
