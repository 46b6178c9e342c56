"""What the losses of several algorithms share: rows of a minibatch, terms, normalised advantages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.config.settings import TrainingConfig
from rlcb.rl.communicator import Communicator
from rlcb.rl.statistics import explained_from_variances, explained_variance


def take_rows(values: Tensor, samples: NDArray[np.int64]) -> Tensor:
    """Return values[samples]. Indexing would copy images element by element, in nine times the time."""
    return values.index_select(0, torch.from_numpy(samples))


def policy_terms(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities (B,) of `actions` (B,) under `logits` (B, A), and the policies' entropies
    (B,) in nats."""
    all_log_probs = torch.log_softmax(logits, dim=-1)
    log_probs = all_log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return log_probs, -(all_log_probs.exp() * all_log_probs).sum(-1)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_range: float | None) -> Tensor:
    """Return the mean of 0.5 (V - R)^2 over the samples; all tensors are (B,).

    With `clip_range`, V is also clipped to `clip_range` around the old value, and the larger of the two
    squared errors counts.
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
    """Return the mean of -log pi(a|s) A + vf_coef * 0.5 (V - target)^2 - ent_coef * entropy, and the mean of
    each part; all tensors are (B,)."""
    policy_loss = -(log_probs * advantages).mean()
    entropy = entropies.mean()
    values_loss = value_loss(values, values, targets, clip_range=None)
    loss = policy_loss + config.vf_coef * values_loss - config.ent_coef * entropy
    return loss, {"policy_loss": policy_loss, "value_loss": values_loss, "entropy": entropy}


def joint_explained_variance(
    values: NDArray[np.float32], returns: NDArray[np.float32], communicator: Communicator
) -> float | None:
    """Return 1 - Var[returns - values] / Var[returns] over the rollouts of all nodes, None if returns have no
    spread. `values` and `returns` are this node's."""
    if communicator.num_nodes == 1:
        return explained_variance(values, returns)
    errors = returns.astype(np.float64) - values
    moments = joint_moments([moments_of(returns), moments_of(errors)], communicator)
    return explained_from_variances(*(squares / count for count, _, squares in moments))


Moments = tuple[float, float, float]
"""Count, mean, and sum of squared deviations from the mean of some numbers."""


def moments_of(numbers: NDArray[Any]) -> Moments:
    """Return the moments of an array, computed in float64."""
    exact = numbers.astype(np.float64)
    mean = float(exact.sum()) / max(1, exact.size)
    return float(exact.size), mean, float(np.square(exact - mean).sum())


def joint_moments(moments: Sequence[Moments], communicator: Communicator) -> list[Moments]:
    """Merge the moments of each node's numbers into those of all nodes together, in one all-reduce (Chan et
    al. 1983, "Algorithms for computing the sample variance").

    `moments` has one entry per minibatch, as has the result. Nodes exchange means and squared deviations:
    plain sums of squares would lose the deviations of numbers with a large mean.
    """
    table = np.zeros((communicator.num_nodes, len(moments), 3))
    if communicator.local_rank == 0:  # one process speaks for its node
        table[communicator.node_rank] = moments
    communicator.sum_(torch.from_numpy(table))
    counts, means, squares = np.moveaxis(table, 2, 0)  # each [nodes, minibatches]
    count = counts.sum(0)
    mean = (counts * means).sum(0) / np.maximum(1, count)
    squares = (squares + counts * np.square(means - mean)).sum(0)
    return list(zip(count.tolist(), mean.tolist(), squares.tolist(), strict=True))


def normalisations(
    minibatches: Sequence[NDArray[np.float32]], communicator: Communicator
) -> list[tuple[float, float]]:
    """Return (mean, 1 / standard deviation) of the advantages of each minibatch.

    `minibatches` holds this node's advantages of each, possibly none. The processes of a node have the same
    rollout, so a single node needs no communication; several nodes need one all-reduce for all minibatches.
    A minibatch without spread, such as a single sample, gets 0 instead of 1 / 0: it prefers no action.
    """
    moments = [moments_of(advantages) for advantages in minibatches]
    if communicator.num_nodes > 1:
        moments = joint_moments(moments, communicator)
    scalings = []
    for count, mean, squares in moments:
        std = (squares / max(1.0, count - 1)) ** 0.5
        scalings.append((mean, 1 / (std + 1e-8) if std > 0 else 0.0))
    return scalings
