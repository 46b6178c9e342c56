"""Synchronous advantage actor-critic (Mnih et al. 2016, without the asynchrony)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.config.config import Config
from rlcb.rl.activation_cache import ActivationCache
from rlcb.rl.learner import Learner
from rlcb.rl.losses import actor_critic_loss, joint_explained_variance, normalisation, policy_terms
from rlcb.rl.rollout_buffer import RolloutBuffer

USES_GAE = True
STATISTICS = ("policy_loss", "value_loss", "entropy")


def update(
    learner: Learner,
    rollout: RolloutBuffer,
    config: Config,
    number: int,
    passes: ActivationCache | None = None,
) -> dict[str, float | None]:
    """One A2C update: one optimizer step on the whole rollout, which has its advantages and returns.

    The loss is -log pi(a|s) A + vf_coef * 0.5 (V - R)^2 - ent_coef * entropy.

    `passes` are those with which this process acted: it then learns from its own samples, and goes on from
    these passes instead of repeating them. `number`, which counts the updates of the run, has no bearing on
    it. Returns the means over all samples.
    """
    training, communicator = config.training, learner.communicator
    explained_variance = joint_explained_variance(rollout.values, rollout.returns, communicator)
    num_samples = rollout.num_samples * communicator.num_nodes
    if passes is None:
        share, own = communicator.shard(np.arange(num_samples), rollout.num_envs), rollout
        observations = torch.from_numpy(rollout.flat("observations"))
    else:
        share, own = np.arange(passes.part.num_samples), passes.part
    names = ("actions", "advantages", "returns")
    data = {name: torch.from_numpy(getattr(own, name).reshape(-1)) for name in names}
    centre, scale = 0.0, 1.0
    if training.normalize_advantages:
        centre, scale = normalisation(rollout.flat("advantages"), communicator)

    def loss(samples: NDArray[np.int64]) -> tuple[Tensor, dict[str, Tensor]]:
        batch = {name: values[samples] for name, values in data.items()}
        logits, values = learner.model(observations[samples]) if passes is None else passes.learn(samples)
        advantages = (batch["advantages"] - centre) * scale
        log_probs, entropies = policy_terms(logits, batch["actions"])
        return actor_critic_loss(log_probs, entropies, values, advantages, batch["returns"], training)

    return {
        **learner.step(share, num_samples, loss, finish=None if passes is None else passes.finish),
        "approx_kl": None,
        "clip_fraction": None,
        "explained_variance": explained_variance,
        "epochs": 1,
    }
