"""Synchronous advantage actor-critic (Mnih et al. 2016, without the asynchrony). A3C learns with it too.

The path of a rollout, T steps of N environments: Trainer.iterate collects it and computes its advantages
[T, N] (rl/ppo.py has the same steps in detail); `update` makes one optimizer step on all samples
(Learner.step), in microbatches of B samples with `loss`: logits [B, A], values [B] -> a scalar.
Logits and values come from a forward pass over the observations or, with an activation cache, from the
passes with which the policy acted (rl/activation_cache.py).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.config.config import Config
from rlcb.rl.learner import Learner
from rlcb.rl.losses import (
    actor_critic_loss,
    joint_explained_variance,
    normalisations,
    policy_terms,
    take_rows,
)
from rlcb.rl.rollout_buffer import RolloutBuffer

USES_GAE = True  # the rollout needs advantages and returns before `update`
STATISTICS = ("policy_loss", "value_loss", "entropy")


def update(
    learner: Learner, rollout: RolloutBuffer, config: Config, update_number: int
) -> dict[str, float | None]:
    """Make one A2C update: one optimizer step on the whole rollout.

    The loss is -log pi(a|s) A + vf_coef * 0.5 (V - R)^2 - ent_coef * entropy. `rollout` (T, N) has its
    advantages A and returns R; `update_number` is not used. With an activation cache this process learns
    from the samples that it collected itself, without one from its shard of the rollout: together the
    processes cover the same samples. Returns the metrics of the update: STATISTICS as means over all
    samples, `grad_norm`, `explained_variance`; those that only PPO has are None.
    """
    training, communicator, cache = config.training, learner.communicator, learner.activation_cache
    explained_variance = joint_explained_variance(rollout.values, rollout.returns, communicator)
    mean, scale = 0.0, 1.0
    if training.normalize_advantages:
        ((mean, scale),) = normalisations([rollout.flat("advantages")], communicator)
    num_samples = communicator.over_all_nodes(rollout.num_samples)
    if cache is None:
        source, samples = rollout, communicator.shard(np.arange(num_samples), rollout.num_envs)
        observations = torch.from_numpy(rollout.flat("observations"))  # [T * N, ...]
    else:
        source, samples = cache.rollout, np.arange(cache.rollout.num_samples)
    actions, advantages, returns = (
        torch.from_numpy(array.reshape(-1)) for array in (source.actions, source.advantages, source.returns)
    )

    def loss(part: NDArray[np.int64]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the samples `part` (B,) and its statistics."""
        if cache is None:
            logits, values = learner.model(take_rows(observations, part))
        else:
            logits, values = cache.forward(part)
        log_probs, entropies = policy_terms(logits, take_rows(actions, part))
        scaled = (take_rows(advantages, part) - mean) * scale
        return actor_critic_loss(log_probs, entropies, values, scaled, take_rows(returns, part), training)

    return {
        **learner.step(samples, num_samples, loss),
        "approx_kl": None,
        "clip_fraction": None,
        "explained_variance": explained_variance,
        "epochs": 1,
    }
