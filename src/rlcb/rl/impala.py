"""IMPALA (Espeholt et al. 2018): an actor-critic that corrects for the age of the policy that acted.

Here are its loss and its update. What acts and what learns at the same time is in parallel/impala_workers.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.config.config import Config
from rlcb.rl.communicator import Communicator
from rlcb.rl.learner import Learner
from rlcb.rl.losses import actor_critic_loss, policy_terms
from rlcb.rl.models import ActorCritic
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.statistics import explained_from_variances
from rlcb.rl.vtrace import Thresholds, vtrace

USES_GAE = False  # computes its own advantages, from what its network says by then
# The means of the targets and errors, and of their squares, are for the explained variance.
MOMENTS = ("target", "target_square", "error", "error_square")
STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "impala/rho_clipped_fraction", *MOMENTS)
BEHAVIOUR = ("observations", "actions", "log_probs")
OUTCOME = ("scaled_rewards", "bootstrap_values", "terminated", "truncated")


def successor_values(
    values: NDArray[np.float32],
    bootstrap_values: NDArray[np.float32],
    truncated: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """V of the true successor of every step, all arguments (T, N): the next row's value by the learner.

    Where an episode was truncated, and after the last row, it is what `bootstrap_values` has: the successor
    is in no row.
    """
    following = np.concatenate([values[1:], bootstrap_values[-1:]])
    return np.where(truncated, bootstrap_values, following)


def targets_and_advantages(
    column: Mapping[str, NDArray[Any]],
    log_ratios: NDArray[np.float32],
    values: NDArray[np.float32],
    config: Config,
) -> tuple[Tensor, Tensor]:
    """V-trace over some columns of a rollout, with `log_ratios` and `values` (T, N) of the learner: what V is
    to become, and what the policy is to follow, (T * N,) each."""
    training, impala = config.training, config.impala
    found = vtrace(
        log_ratios,
        column["scaled_rewards"],
        values,
        successor_values(values, column["bootstrap_values"], column["truncated"]),
        column["terminated"],
        column["truncated"],
        training.gamma,
        training.gae_lambda,
        Thresholds(
            impala.vtrace_clip_rho_threshold,
            impala.vtrace_clip_pg_rho_threshold,
            impala.vtrace_clip_c_threshold,
        ),
    )
    targets, advantages = (torch.from_numpy(each.reshape(-1)) for each in found)
    return targets, advantages


def columns_loss(
    model: ActorCritic, rollout: RolloutBuffer, config: Config, columns: NDArray[np.int64]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to be minimised: -log pi(a|s) A + vf_coef * 0.5 (V - v)^2 - ent_coef * entropy, means over the
    samples of some columns of the rollout, with targets v and advantages A of V-trace.

    V-trace looks along whole columns, so these are what a minibatch is made of. Returns the loss and
    STATISTICS, means as well.
    """
    column = {name: getattr(rollout, name)[:, columns] for name in (*BEHAVIOUR, *OUTCOME)}
    n_steps, count = column["actions"].shape
    observations = column["observations"].reshape(n_steps * count, *rollout.spaces.observation_shape)
    actions = torch.from_numpy(column["actions"].reshape(-1))
    logits, values = model(torch.from_numpy(observations))
    log_probs, entropies = policy_terms(logits, actions)
    log_ratios = log_probs.detach().numpy().reshape(n_steps, count) - column["log_probs"]
    now = values.detach().numpy().reshape(n_steps, count)
    targets, advantages = targets_and_advantages(column, log_ratios, now, config)
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


def own_share(columns: NDArray[np.int64], communicator: Communicator) -> NDArray[np.int64]:
    """Which of a node's columns this process learns from."""
    return columns[communicator.local_rank :: communicator.local_size]


def update(
    learner: Learner,
    rollout: RolloutBuffer,
    config: Config,
    number: int,
    columns: NDArray[np.int64] | None = None,
) -> dict[str, float | None]:
    """One IMPALA update: one optimizer step on `columns` (all by default) of the rollout of each node.

    The rollout has its scaled rewards, and `bootstrap_values` of the learner's network in its last row.
    `number`, which counts the updates of the run, has no bearing on it. Returns the means over all samples.
    """
    columns = np.arange(rollout.num_envs) if columns is None else columns
    share = own_share(columns, learner.communicator)
    total = len(columns) * learner.communicator.num_nodes
    scale = total * rollout.n_steps if config.impala.loss_reduction == "sum" else 1

    def loss(some: NDArray[np.int64]) -> tuple[Tensor, dict[str, Tensor]]:
        value, statistics = columns_loss(learner.model, rollout, config, some)
        return value * scale, statistics

    microbatch = max(1, learner.microbatch_size // rollout.n_steps)
    metrics: dict[str, float | None] = dict(learner.step(share, total, loss, microbatch).items())
    mean, square, error, error_square = (metrics.pop(name) or 0.0 for name in MOMENTS)
    return {
        **metrics,
        "clip_fraction": None,
        "explained_variance": explained_from_variances(square - mean**2, error_square - error**2),
        "epochs": 1,
    }
