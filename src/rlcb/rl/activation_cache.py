"""The passes through the convolutions with which a policy acted, kept so that learning need not repeat them.

Who learns once from what the same parameters did would compute the same features again. The dense layers
behind the convolutions are cheap for many samples at once and dear for few, so these do learn from the whole
share at once; the gradient of the features then goes back through what was kept.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.rl.models import ActorCritic
from rlcb.rl.rollout_buffer import RolloutBuffer


class ActivationCache:
    """Those of one process and one rollout."""

    def __init__(
        self, model: ActorCritic, part: RolloutBuffer, sample_bytes: int, heartbeat: Callable[[], None]
    ) -> None:
        """`part` is what the process fills while it acts; its samples are the process's share of learning.
        Each takes `sample_bytes` until it has been learned from.

        `heartbeat` is called between steps while the gradient goes back; it may raise to abandon the update.
        """
        self.model = model
        self.part = part
        self.sample_bytes = sample_bytes
        self.heartbeat = heartbeat
        self._features: list[Tensor] = []
        """(N, F) of each step, with the graph behind them."""
        self._known: Tensor | None = None
        """The features of all samples, without a graph."""
        self._starts: list[Tensor] = []
        """Of each microbatch, what the dense layers began with."""

    def act(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and values of a step's observations, to be called for one step after another."""
        with torch.enable_grad():
            features = self.model.features(observations)
        features.register_hook(self._beat)  # type: ignore[no-untyped-call]
        self._features.append(features)
        with torch.no_grad():
            return self.model.heads(features)

    def _beat(self, gradient: Tensor) -> None:
        self.heartbeat()

    def learn(self, samples: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Logits and values of samples t * N + i of the part, with the graph of the dense layers. All samples
        are to be learned from, in their order."""
        if self._known is None:
            self._known = torch.cat([features.detach() for features in self._features])
        start = self._known[samples].requires_grad_()
        self._starts.append(start)
        return self.model.heads(start)

    def finish(self) -> None:
        """Take the gradient that the features of all samples have by now on to the convolutions. This rollout
        is done then: what was kept of it is let go of."""
        gradients = torch.cat([start.grad for start in self._starts if start.grad is not None])
        torch.autograd.backward(self._features, list(gradients.split(self.part.num_envs)))  # type: ignore[no-untyped-call]
        self._features, self._starts, self._known = [], [], None


def activation_bytes(model: ActorCritic) -> int:
    """What is kept of a sample's pass through the convolutions until its gradient has gone back; 0 for a
    network without any."""
    one, two = (_kept_bytes(model, samples) for samples in (1, 2))
    return two - one


def _kept_bytes(model: ActorCritic, samples: int) -> int:
    """Also counts what does not depend on the number of samples, as parameters in another precision."""
    shape, dtype = model.spaces.observation_shape, getattr(torch, model.spaces.observation_dtype)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.enable_grad():
        features = model.features(torch.zeros((samples, *shape), dtype=dtype))
    return sum(kept.values()) if features.requires_grad else 0
