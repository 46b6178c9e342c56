"""The registry of algorithms: their names, the modes that each one has, and what sets it apart.

To add an algorithm, add an entry here and its update in `rl/` to
`rlcb.training.base.UPDATES` (CONTRIBUTING.md has an
example).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

AlgorithmName = Literal["ppo", "a2c", "a3c", "impala"]
Mode = Literal["sequential", "parallel", "distributed"]

MODES: tuple[Mode, ...] = get_args(Mode)
ONE_MACHINE: tuple[Mode, ...] = ("sequential", "parallel")
"""The modes that run on one machine, which are those of a study."""


@dataclass(frozen=True)
class Algorithm:
    """What the program has to know of an algorithm besides its update."""

    name: AlgorithmName
    label: str
    modes: tuple[Mode, ...]
    has_minibatches: bool = False
    """Whether it passes several times over a rollout, in minibatches (`batch_size`, `n_epochs`)."""
    has_actors: bool = False
    """Whether actors and learners are different processes where there are several processes."""
    is_asynchronous: bool = False
    """Whether workers apply their gradients without waiting for each other."""
    caches_activations: bool = False
    """Whether learning can reuse the activations that acting computed, with the same parameters."""


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
"""Why an algorithm does not have a mode."""
