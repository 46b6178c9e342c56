"""Proximal policy optimisation with the clipped surrogate (Schulman et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.config.config import Config
from rlcb.config.settings import TrainingConfig
from rlcb.rl.communicator import Communicator
from rlcb.rl.learner import Learner
from rlcb.rl.losses import joint_explained_variance, normalisations, policy_terms, value_loss
from rlcb.rl.models import ActorCritic
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.statistics import SampleMeans
from rlcb.seeding import minibatch_permutation

USES_GAE = True  # learns from advantages that were estimated before the update
STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def ppo_loss(
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    old_values: Tensor,
    advantages: Tensor,
    returns: Tensor,
    config: TrainingConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of equation 9, to be minimised: -L_clip + vf_coef * L_value - ent_coef * entropy.

    | argument                                               | shape  |
    |--------------------------------------------------------|--------|
    | logits                                                 | (B, A) |
    | values, old_values, actions, old_log_probs             | (B,)   |
    | advantages, returns                                    | (B,)   |

    Returns the loss and the means over samples of its parts, of the approximate KL divergence from the
    behaviour policy, E[(r - 1) - log r] (Schulman, "Approximating KL divergence", 2020), and of the share of
    ratios clipped.
    """
    log_probs, entropies = policy_terms(logits, actions)
    log_ratios = log_probs - old_log_probs
    ratios = log_ratios.exp()
    clipped_ratios = ratios.clamp(1 - config.clip_range, 1 + config.clip_range)
    policy_loss = -torch.minimum(ratios * advantages, clipped_ratios * advantages).mean()
    entropy = entropies.mean()
    values_loss = value_loss(
        values, old_values, returns, config.clip_range if config.clip_value_loss else None
    )
    loss = policy_loss + config.vf_coef * values_loss - config.ent_coef * entropy
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": values_loss,
        "entropy": entropy,
        "approx_kl": (ratios - 1 - log_ratios).mean(),
        "clip_fraction": ((ratios - 1).abs() > config.clip_range).float().mean(),
    }


def minibatch_loss(
    model: ActorCritic,
    data: dict[str, Tensor],
    config: TrainingConfig,
    centre: float,
    scale: float,
    samples: NDArray[np.int64],
) -> tuple[Tensor, dict[str, Tensor]]:
    """`ppo_loss` of some samples of the flat rollout `data`, its advantages shifted by `centre` and
    scaled."""
    batch = {name: values[samples] for name, values in data.items()}
    logits, values = model(batch["observations"])
    return ppo_loss(
        logits,
        values,
        batch["actions"],
        batch["log_probs"],
        batch["values"],
        (batch["advantages"] - centre) * scale,
        batch["returns"],
        config,
    )


def minibatches(
    rollout: RolloutBuffer, order: NDArray[np.int64], config: TrainingConfig, communicator: Communicator
) -> Iterator[tuple[NDArray[np.int64], int, float, float]]:
    """The minibatches of an epoch that visits the samples of all nodes in `order`.

    Gives this process's share of each, the number of its samples in all processes, and what advantages are
    shifted and scaled by. Advantages stay as they are during an update, so these are known for all of an
    epoch's minibatches before the first step.
    """
    size = config.batch_size or len(order)
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    here = [communicator.node_shard(part, rollout.num_envs) for part in parts]
    scalings = [(0.0, 1.0)] * len(parts)
    if config.normalize_advantages:
        advantages = rollout.flat("advantages")
        scalings = normalisations([advantages[samples] for samples in here], communicator)
    for part, samples, (centre, scale) in zip(parts, here, scalings, strict=True):
        yield communicator.rank_shard(samples), len(part), centre, scale


def update(learner: Learner, rollout: RolloutBuffer, config: Config, number: int) -> dict[str, float | None]:
    """One PPO update: `n_epochs` passes over the rollout in shuffled minibatches. Every sample is used once a
    pass.

    `rollout` has its advantages and returns; `number` counts the updates of the run and keys the shuffling.
    Returns the means over all minibatches, weighted by their samples, and the number of epochs that were
    done.
    """
    training = config.training
    data = {
        name: torch.from_numpy(rollout.flat(name))
        for name in ("observations", "actions", "log_probs", "values", "advantages", "returns")
    }
    # Before the first step: once the last one is done, other processes begin to overwrite the rollout.
    communicator = learner.communicator
    explained_variance = joint_explained_variance(rollout.values, rollout.returns, communicator)
    means = SampleMeans()
    epochs = 0
    num_samples = rollout.num_samples * communicator.num_nodes
    for epoch in range(training.n_epochs):
        order = minibatch_permutation(training.seed, number, epoch, num_samples)
        epoch_means = SampleMeans()
        for share, size, centre, scale in minibatches(rollout, order, training, communicator):
            loss = partial(minibatch_loss, learner.model, data, training, centre, scale)
            epoch_means.add(learner.step(share, size, loss), size)
        means.merge(epoch_means)
        epochs += 1
        if training.target_kl is not None and epoch_means["approx_kl"] > training.target_kl:
            break
    return {
        **means.result(),
        "explained_variance": explained_variance,
        "epochs": epochs,
    }
