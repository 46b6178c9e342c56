"""Pieces that the losses of several algorithms share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.config.settings import TrainingConfig
from rlcb.rl import statistics
from rlcb.rl.communicator import Communicator


def policy_terms(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B,) of the actions taken (B,) under logits (B, A), and the entropies (B,) in
    nats."""
    all_log_probs = torch.log_softmax(logits, dim=-1)
    log_probs = all_log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return log_probs, -(all_log_probs.exp() * all_log_probs).sum(-1)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_range: float | None) -> Tensor:
    """0.5 (V - R)^2, the mean over samples; all arguments (B,).

    With `clip_range` the larger of the squared errors of V and of V kept within `clip_range` of the old
    value.
    """
    errors = (values - returns).square()
    if clip_range is not None:
        clipped = old_values + (values - old_values).clamp(-clip_range, clip_range)
        errors = torch.maximum(errors, (clipped - returns).square())
    return 0.5 * errors.mean()


def actor_critic_loss(
    log_probs: Tensor,
    entropies: Tensor,
    values: Tensor,
    advantages: Tensor,
    targets: Tensor,
    config: TrainingConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """-log pi(a|s) A + vf_coef * 0.5 (V - target)^2 - ent_coef * entropy, means over samples, all arguments
    (B,).

    Returns the loss and the means of its parts.
    """
    policy_loss = -(log_probs * advantages).mean()
    entropy = entropies.mean()
    values_loss = value_loss(values, values, targets, clip_range=None)
    loss = policy_loss + config.vf_coef * values_loss - config.ent_coef * entropy
    return loss, {"policy_loss": policy_loss, "value_loss": values_loss, "entropy": entropy}


def joint_explained_variance(
    values: NDArray[np.float32], returns: NDArray[np.float32], communicator: Communicator
) -> float | None:
    """1 - Var[returns - values] / Var[returns] over the rollouts of all nodes, of which this process sees its
    node's."""
    if communicator.num_nodes == 1:
        return statistics.explained_variance(values, returns)
    samples = (returns, returns.astype(np.float64) - values)
    found = joint_moments([moments_of(each) for each in samples], communicator)
    return statistics.explained_from_variances(*(squares / count for count, _, squares in found))


Moments = tuple[float, float, float]
"""Of numbers: how many there are, their mean, the sum of their squared deviations from it."""


def moments_of(numbers: NDArray[Any]) -> Moments:
    exact = numbers.astype(np.float64)
    mean = float(exact.sum()) / max(1, exact.size)
    return float(exact.size), mean, float(np.square(exact - mean).sum())


def joint_moments(moments: Sequence[Moments], communicator: Communicator) -> list[Moments]:
    """Moments of what all nodes have together, from those of each node, in one all-reduce (Chan et al. 1983,
    "Algorithms for computing the sample variance").

    Nodes tell means and deviations from them, since plain sums of squares lose the deviations of numbers that
    are large beside them.
    """
    table = np.zeros((communicator.num_nodes, len(moments), 3))
    if communicator.local_rank == 0:  # for all processes of its node
        table[communicator.node_rank] = moments
    communicator.sum_(torch.from_numpy(table))
    counts, means, squares = np.moveaxis(table, 2, 0)  # each (nodes, minibatches)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / np.maximum(1, count)
    squares = (squares + counts * np.square(means - mean)).sum(0)
    return list(zip(count.tolist(), mean.tolist(), squares.tolist(), strict=True))


def normalisations(
    minibatches: Sequence[NDArray[np.float32]], communicator: Communicator
) -> list[tuple[float, float]]:
    """(mean, 1 / standard deviation) of the advantages of each of several minibatches.

    `minibatches` are the advantages that this node has of each, perhaps none. All processes of a node see the
    same, so on one node nobody has to be asked; nodes need one all-reduce for all minibatches.

    Without spread, as in a minibatch of one sample, the second is 0: nothing tells good actions from bad.
    """
    moments = [moments_of(advantages) for advantages in minibatches]
    if communicator.num_nodes > 1:
        moments = joint_moments(moments, communicator)
    found = []
    for count, mean, squares in moments:
        std = (squares / max(1.0, count - 1)) ** 0.5
        found.append((mean, 1 / (std + 1e-8) if std > 0 else 0.0))
    return found


def normalisation(advantages: NDArray[np.float32], communicator: Communicator) -> tuple[float, float]:
    """The same for one minibatch."""
    (found,) = normalisations([advantages], communicator)
    return found
