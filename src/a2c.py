"""Synchronous advantage actor-critic (Mnih et al. 2016, without the asynchrony)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from src.buffer import RolloutBuffer
from src.learner import Learner
from src.losses import normalisation, policy_terms, value_loss
from src.metrics import explained_variance
from src.settings import TrainingConfig

STATISTICS = ("policy_loss", "value_loss", "entropy")


def a2c_loss(
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    advantages: Tensor,
    returns: Tensor,
    config: TrainingConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to be minimised: -log pi(a|s) A + vf_coef * 0.5 (V - R)^2 - ent_coef * entropy, means over
    samples.

    logits (B, A); values, actions, advantages and returns (B,). Returns the loss and the means of its parts.
    """
    log_probs, entropies = policy_terms(logits, actions)
    policy_loss = -(log_probs * advantages).mean()
    entropy = entropies.mean()
    values_loss = value_loss(values, values, returns, clip_range=None)
    loss = policy_loss + config.vf_coef * values_loss - config.ent_coef * entropy
    return loss, {"policy_loss": policy_loss, "value_loss": values_loss, "entropy": entropy}


def update(
    learner: Learner, rollout: RolloutBuffer, config: TrainingConfig, number: int
) -> dict[str, float | None]:
    """One A2C update: one optimizer step on the whole rollout, which has its advantages and returns.

    `number`, which counts the updates of the run, has no bearing on it. Returns the means over all samples.
    """
    variance_explained = explained_variance(rollout.values, rollout.returns)
    names = ("observations", "actions", "advantages", "returns")
    data = {name: torch.from_numpy(rollout.flat(name)) for name in names}
    communicator = learner.communicator
    share = np.arange(communicator.rank, rollout.num_samples, communicator.world_size)
    centre, scale = 0.0, 1.0
    if config.normalize_advantages:
        centre, scale = normalisation(rollout.flat("advantages")[share], communicator)

    def loss(samples: NDArray[np.int64]) -> tuple[Tensor, dict[str, Tensor]]:
        batch = {name: values[samples] for name, values in data.items()}
        logits, values = learner.model(batch["observations"])
        advantages = (batch["advantages"] - centre) * scale
        return a2c_loss(logits, values, batch["actions"], advantages, batch["returns"], config)

    return {
        **learner.step(share, rollout.num_samples, loss),
        "approx_kl": None,
        "clip_fraction": None,
        "explained_variance": variance_explained,
        "epochs": 1,
    }
