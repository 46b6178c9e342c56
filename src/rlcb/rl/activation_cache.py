"""The activation cache: A2C and A3C learn from the forward passes with which the policy acted.

They learn once from each sample, with the parameters that acted, so a second forward pass through the
convolutions would compute the same features. The dense layers are cheap for many samples at once, so they
run again over the whole shard; the gradient of the features then goes back through what was cached.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.kernels.features import NativePasses, backpropagate
from rlcb.rl.losses import take_rows
from rlcb.rl.models import ActorCritic
from rlcb.rl.rollout_buffer import RolloutBuffer


class ActivationCache:
    """The cached activations of one process for one rollout.

    The collector calls `act` for every step. The learner then calls `forward` for every microbatch and
    `backward` once.
    """

    def __init__(
        self, model: ActorCritic, rollout: RolloutBuffer, sample_bytes: int, heartbeat: Callable[[], None]
    ) -> None:
        """`rollout` (T, N) is what this process collects and learns from. A sample's
        activations take `sample_bytes` bytes until `backward` is done.

        `heartbeat` is called between the steps of the backward pass; it may raise to abandon the update.
        """
        self.model = model
        self.rollout = rollout
        self.sample_bytes = sample_bytes
        self._passes: NativePasses | _GraphPasses = _GraphPasses(model, heartbeat)
        if model.native is not None:
            self._passes = NativePasses(model.native, rollout.num_samples, heartbeat)
        self._leaves: list[Tensor] = []
        """The input (B, F) of the dense layers for each microbatch; backward passes leave gradients here."""

    def act(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Act as ActorCritic.act in the next step's observations, and cache its activations.

        The observations must stay as they are until `backward` is done.
        """
        features = self._passes.forward(observations)
        with torch.no_grad():
            return self.model.sample(features, noise)

    def forward(self, samples: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return logits (B, A) and values (B,) of samples t * N + i, with the graph of the dense layers only.

        The calls together must cover all samples of the rollout, in order.
        """
        leaf = take_rows(self._passes.features(), samples).requires_grad_()
        self._leaves.append(leaf)
        return self.model.heads(leaf)

    def backward(self) -> None:
        """Backpropagate the gradient of the features of all samples through the convolutions, and empty the
        cache."""
        self._passes.backward(torch.cat([leaf.grad for leaf in self._leaves if leaf.grad is not None]))
        self._leaves = []


class _GraphPasses:
    """The passes of PyTorch's kernels, with a graph for each step."""

    def __init__(self, model: ActorCritic, heartbeat: Callable[[], None]) -> None:
        self.model, self.heartbeat = model, heartbeat
        self._steps: list[Tensor] = []
        """The features (N, F) of each step, with their graph."""
        self._detached: Tensor | None = None
        """The features (T * N, F) of all samples, without a graph."""

    def forward(self, observations: Tensor) -> Tensor:
        with torch.enable_grad():
            features = self.model.features(observations)
        features.register_hook(self._beat)  # type: ignore[no-untyped-call]
        self._steps.append(features)
        return features

    def _beat(self, gradient: Tensor) -> None:
        self.heartbeat()

    def features(self) -> Tensor:
        if self._detached is None:
            self._detached = torch.cat([features.detach() for features in self._steps])
        return self._detached

    def backward(self, gradient: Tensor) -> None:
        backpropagate(torch.cat(self._steps), gradient)
        self._steps, self._detached = [], None


def activation_bytes(model: ActorCritic) -> int:
    """Return the bytes that the cache holds for one sample; 0 for a network without convolutions."""
    one, two = (_saved_bytes(model, samples) for samples in (1, 2))
    return two - one  # the difference leaves out what all samples share, such as parameters in bfloat16


def _saved_bytes(model: ActorCritic, samples: int) -> int:
    """Return the bytes that autograd saves during a forward pass through the convolutions."""
    shape, dtype = model.spaces.observation_shape, getattr(torch, model.spaces.observation_dtype)
    saved: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor), torch.enable_grad():
        features = model.features(torch.zeros((samples, *shape), dtype=dtype))
    return sum(saved.values()) if features.requires_grad else 0
