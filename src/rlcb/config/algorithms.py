"""The registry of algorithms: names, modes and properties.

To add an algorithm, add an entry here and its update in `rl/` to `rlcb.training.base.UPDATES`
(CONTRIBUTING.md has an example).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

AlgorithmName = Literal["ppo", "a2c", "a3c", "impala"]
Mode = Literal["sequential", "parallel", "distributed"]

MODES: tuple[Mode, ...] = get_args(Mode)
ONE_MACHINE: tuple[Mode, ...] = ("sequential", "parallel")
"""The modes that run on one machine; studies have these modes."""


@dataclass(frozen=True)
class Algorithm:
    """The properties of an algorithm, apart from its update."""

    name: AlgorithmName
    label: str
    modes: tuple[Mode, ...]
    has_minibatches: bool = False
    """Whether it makes several epochs of minibatches per rollout (`batch_size`, `n_epochs`)."""
    has_actors: bool = False
    """Whether its parallel and distributed modes have separate actors and learners."""
    is_asynchronous: bool = False
    """Whether workers apply their gradients without waiting for each other."""
    caches_activations: bool = False
    """Whether learning can reuse the activations that acting computed: the parameters are the same."""


ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("ppo", "PPO", MODES, has_minibatches=True),
        Algorithm("a2c", "A2C", MODES, caches_activations=True),
        Algorithm("a3c", "A3C", ("parallel",), is_asynchronous=True, caches_activations=True),
        Algorithm("impala", "IMPALA", MODES, has_actors=True),
    )
}

WHY_NOT = {
    ("a3c", "sequential"): "one sequential A3C worker is A2C",
    ("a3c", "distributed"): "A3C runs on one machine",
}
"""The reason why an algorithm does not have a mode, by (algorithm, mode)."""
