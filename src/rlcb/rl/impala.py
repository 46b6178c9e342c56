"""IMPALA's loss and update (Espeholt et al. 2018): an actor-critic that corrects for off-policy data.

The path of a batch, T steps of C columns (a column is one environment's unroll): actors act with older
parameters and write unrolls (parallel/impala_actor.py), or Trainer.iterate collects a rollout; `update`
makes one optimizer step (Learner.step), in microbatches of whole columns with `columns_loss`:
model: observations [T * C, ...] -> logits, values; V-trace (rl/vtrace.py): [T, C] -> targets, advantages;
actor_critic_loss: a scalar. The actors and learners themselves are in parallel/impala_workers.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.config.config import Config
from rlcb.rl.learner import Learner
from rlcb.rl.losses import actor_critic_loss, policy_terms
from rlcb.rl.models import ActorCritic
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.statistics import explained_from_variances
from rlcb.rl.vtrace import Thresholds, vtrace

USES_GAE = False  # V-trace computes advantages with the learner's network during `update`
# Means of the value targets, of the value errors, and of their squares: they give the explained variance.
MOMENTS = ("target", "target_square", "error", "error_square")
STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "impala/rho_clipped_fraction", *MOMENTS)
LOSS_INPUTS = (
    *("observations", "actions", "log_probs"),
    *("scaled_rewards", "bootstrap_values", "terminated", "truncated"),
)


def update(
    learner: Learner,
    rollout: RolloutBuffer,
    config: Config,
    update_number: int,
    columns: NDArray[np.int64] | None = None,
) -> dict[str, float | None]:
    """Make one IMPALA update: one optimizer step on each node's `columns` of its rollout, by default all.

    `rollout` (T, N) has its scaled rewards, and the learner's values of the observations behind the last row
    in the last row of `bootstrap_values`; `update_number` is not used. Returns the metrics of the update:
    STATISTICS without MOMENTS as means over all samples, `grad_norm`, `explained_variance`; those that only
    PPO has are None.
    """
    columns = np.arange(rollout.num_envs) if columns is None else columns
    total = len(columns) * learner.communicator.num_nodes
    scale = total * rollout.n_steps if config.impala.loss_reduction == "sum" else 1

    def loss(part: NDArray[np.int64]) -> tuple[Tensor, dict[str, Tensor]]:
        value, statistics = columns_loss(learner.model, rollout, config, part)
        return value * scale, statistics

    microbatch_columns = max(1, learner.microbatch_size // rollout.n_steps)
    shard = learner.communicator.rank_shard(columns)
    metrics = learner.step(shard, total, loss, microbatch_columns)
    target, target_square, error, error_square = (metrics.pop(name) for name in MOMENTS)
    return {
        **metrics,
        "clip_fraction": None,
        "explained_variance": explained_from_variances(target_square - target**2, error_square - error**2),
        "epochs": 1,
    }


def columns_loss(
    model: ActorCritic, rollout: RolloutBuffer, config: Config, columns: NDArray[np.int64]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run the network on `columns` (C,) of the rollout and return their loss and STATISTICS.

    The loss, to be minimised, is -log pi(a|s) A + vf_coef * 0.5 (V - v)^2 - ent_coef * entropy with V-trace's
    targets v and advantages A; it and the statistics are means over the T * C samples. V-trace needs whole
    columns, so a minibatch consists of columns, not of samples.
    """
    # `[:, columns]` would return transposed memory, and to flatten it would copy the images once more.
    batch = {name: getattr(rollout, name).take(columns, axis=1) for name in LOSS_INPUTS}  # [T, C, ...]
    n_steps, count = batch["actions"].shape
    observations = batch["observations"].reshape(n_steps * count, *rollout.spaces.observation_shape)
    actions = torch.from_numpy(batch["actions"].reshape(-1))
    logits, values = model(torch.from_numpy(observations))  # [T * C, A], [T * C]
    log_probs, entropies = policy_terms(logits, actions)
    log_ratios = log_probs.detach().numpy().reshape(n_steps, count) - batch["log_probs"]
    values_now = values.detach().numpy().reshape(n_steps, count)
    targets, advantages = targets_and_advantages(batch, log_ratios, values_now, config)
    loss, statistics = actor_critic_loss(log_probs, entropies, values, advantages, targets, config.training)
    errors, ratios = targets - values.detach(), torch.from_numpy(np.exp(log_ratios))
    clipped = ratios > config.impala.vtrace_clip_rho_threshold
    return loss, {
        **statistics,
        "approx_kl": (ratios - 1 - torch.from_numpy(log_ratios)).mean(),
        "impala/rho_clipped_fraction": clipped.float().mean(),
        "target": targets.mean(),
        "target_square": targets.square().mean(),
        "error": errors.mean(),
        "error_square": errors.square().mean(),
    }


def targets_and_advantages(
    batch: Mapping[str, NDArray[Any]],
    log_ratios: NDArray[np.float32],
    values: NDArray[np.float32],
    config: Config,
) -> tuple[Tensor, Tensor]:
    """Return V-trace's value targets and policy-gradient advantages, (T * C,) each.

    `batch` has the arrays (T, C) of the rollout; `log_ratios` and `values` (T, C) come from the learner's
    network.
    """
    training, impala = config.training, config.impala
    results = vtrace(
        log_ratios,
        batch["scaled_rewards"],
        values,
        successor_values(values, batch["bootstrap_values"], batch["truncated"]),
        batch["terminated"],
        batch["truncated"],
        training.gamma,
        training.gae_lambda,
        Thresholds(
            impala.vtrace_clip_rho_threshold,
            impala.vtrace_clip_pg_rho_threshold,
            impala.vtrace_clip_c_threshold,
        ),
    )
    targets, advantages = (torch.from_numpy(array.reshape(-1)) for array in results)
    return targets, advantages


def successor_values(
    values: NDArray[np.float32], bootstrap_values: NDArray[np.float32], truncated: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Return V of the true successor of every step (T, C): the value in the next row, by the learner's
    network.

    After a truncation and after the last row the successor is in no row; its value is in `bootstrap_values`.
    """
    following = np.concatenate([values[1:], bootstrap_values[-1:]])
    return np.where(truncated, bootstrap_values, following)
