"""Proximal policy optimisation with the clipped surrogate objective (Schulman et al. 2017).

How a minibatch gets from the environments to the optimizer. T steps, N environments of a node, A actions,
n samples of a minibatch in this process, B samples of a microbatch, P parameters:

    Trainer.iterate                   one update, training/trainer.py
      Collector.collect               the policy acts: observations [N, ...] -> logits [N, A], values [N];
                                      writes every array of the RolloutBuffer, [T, N, ...]
      Trainer._compute_advantages     scales rewards; GAE: rewards, values -> advantages, returns [T, N]
      update                          here; flattens the rollout to [T * N, ...]; for each epoch:
        minibatches                   shuffles; sample numbers [n], mean and scale of the advantages
        Learner.step                  one optimizer step, rl/learner.py; for each microbatch of the n samples:
          minibatch_loss              here; model: observations [B, ...] -> logits [B, A], values [B]
            ppo_loss                  here; the loss, a scalar, and its statistics
          backward                    adds to the gradient of all parameters [P]
        Reduction.finish              sums the gradient over all processes
        Learner.apply                 the optimizer's step on the clipped gradient
"""

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
from rlcb.rl.losses import joint_explained_variance, normalisations, policy_terms, take_rows, value_loss
from rlcb.rl.models import ActorCritic
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.statistics import SampleMeans
from rlcb.seeding import minibatch_permutation

USES_GAE = True  # the rollout needs advantages and returns before `update`
STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def update(
    learner: Learner, rollout: RolloutBuffer, config: Config, update_number: int
) -> dict[str, float | None]:
    """Make one PPO update: `n_epochs` epochs over the rollout in shuffled minibatches.

    Each epoch uses every sample once. `rollout` (T, N) has its advantages and returns; `update_number` counts
    the updates of the run and seeds the shuffling. An epoch with a mean KL divergence above `target_kl` is
    the last one. Returns the metrics of the update: STATISTICS and `grad_norm` as means over all samples,
    `explained_variance` of the values with which the policy acted, and the number of `epochs`.
    """
    training, communicator = config.training, learner.communicator
    data = {
        name: torch.from_numpy(rollout.flat(name))  # [T * N, ...]
        for name in ("observations", "actions", "log_probs", "values", "advantages", "returns")
    }
    # Computed first: after this process's last step, other processes begin to overwrite the rollout.
    explained_variance = joint_explained_variance(rollout.values, rollout.returns, communicator)
    num_samples = communicator.over_all_nodes(rollout.num_samples)
    means = SampleMeans()
    epochs = 0
    for epoch in range(training.n_epochs):
        order = minibatch_permutation(training.seed, update_number, epoch, num_samples)
        epoch_means = SampleMeans()
        for samples, size, mean, scale in minibatches(rollout, order, training, communicator):
            loss = partial(minibatch_loss, learner.model, data, training, mean, scale)
            epoch_means.add(learner.step(samples, size, loss), size)
        means.merge(epoch_means)
        epochs += 1
        if training.target_kl is not None and epoch_means["approx_kl"] > training.target_kl:
            break
    return {**means.result(), "explained_variance": explained_variance, "epochs": epochs}


def minibatches(
    rollout: RolloutBuffer, order: NDArray[np.int64], config: TrainingConfig, communicator: Communicator
) -> Iterator[tuple[NDArray[np.int64], int, float, float]]:
    """Split an epoch into minibatches and yield this process's shard of each.

    `order` is a permutation of the samples of all nodes. Yields (sample numbers of the shard in the node's
    rollout, samples of the whole minibatch, mean of its advantages, 1 / their standard deviation); without
    `normalize_advantages` the last two are 0 and 1. Advantages do not change during an update, so one
    all-reduce gives the means and deviations of all minibatches before the epoch's first step.
    """
    batch_size = config.batch_size or len(order)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    node_shards = [communicator.node_shard(batch, rollout.num_envs) for batch in batches]
    scalings = [(0.0, 1.0)] * len(batches)
    if config.normalize_advantages:
        advantages = rollout.flat("advantages")  # [T * N]
        scalings = normalisations([advantages[samples] for samples in node_shards], communicator)
    for batch, samples, (mean, scale) in zip(batches, node_shards, scalings, strict=True):
        yield communicator.rank_shard(samples), len(batch), mean, scale


def minibatch_loss(
    model: ActorCritic,
    data: dict[str, Tensor],
    config: TrainingConfig,
    advantage_mean: float,
    advantage_scale: float,
    samples: NDArray[np.int64],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run the network on `samples` (B,) of the flat rollout `data` and return their `ppo_loss`.

    Advantages are normalised: (A - advantage_mean) * advantage_scale.
    """
    batch = {name: take_rows(values, samples) for name, values in data.items()}  # [B, ...]
    logits, values = model(batch["observations"])  # [B, A], [B]
    return ppo_loss(
        logits,
        values,
        batch["actions"],
        batch["log_probs"],
        batch["values"],
        (batch["advantages"] - advantage_mean) * advantage_scale,
        batch["returns"],
        config,
    )


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
    """Return the loss of equation 9, to be minimised, -L_clip + vf_coef * L_value - ent_coef * entropy, and
    its statistics.

    | argument                                               | shape  |
    |--------------------------------------------------------|--------|
    | logits                                                 | (B, A) |
    | values, old_values, actions, old_log_probs             | (B,)   |
    | advantages, returns                                    | (B,)   |

    `old_log_probs` and `old_values` are what the network gave when it acted. The statistics are means over
    the samples: the three parts of the loss, the approximate KL divergence from the behaviour policy,
    E[(r - 1) - log r] (Schulman, "Approximating KL divergence", 2020), and the fraction of clipped ratios.
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
