"""Pieces that the losses of several algorithms share."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from src import metrics
from src.distributed import Communicator
from src.settings import TrainingConfig


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


def explained_variance(
    values: NDArray[np.float32], returns: NDArray[np.float32], communicator: Communicator
) -> float | None:
    """1 - Var[returns - values] / Var[returns] over the rollouts of all nodes, of which this process sees its
    node's."""
    if communicator.num_nodes == 1:
        return metrics.explained_variance(values, returns)
    variances = []
    for sample in (returns.astype(np.float64), returns.astype(np.float64) - values):
        # All processes of a node add the same numbers, on every node as many times.
        count, total = communicator.sum_floats([sample.size, sample.sum()])
        (squares,) = communicator.sum_floats([np.square(sample - total / count).sum()])
        variances.append(squares / count)
    return metrics.variance_explained(*variances)


def normalisation(advantages: NDArray[np.float32], communicator: Communicator) -> tuple[float, float]:
    """(mean, 1 / standard deviation) of a minibatch's advantages, of which this process holds a share.

    Without spread, as in a minibatch of one sample, the second is 0: nothing tells good actions from bad.
    """
    share = advantages.astype(np.float64)
    count, total = communicator.sum_floats([share.size, share.sum()])
    mean = total / count
    (squares,) = communicator.sum_floats([np.square(share - mean).sum()])
    std = (squares / max(1.0, count - 1)) ** 0.5
    return mean, 1 / (std + 1e-8) if std > 0 else 0.0
