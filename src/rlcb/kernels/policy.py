"""Acting on the native kernels: dense layer, policy head, value head and sampling, without gradients.

PyTorch needs a dozen small operations for this. While a policy acts, environments and convolutions
displace their code from the caches at every step, and each of them then takes several times as long.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcb.kernels.dense import NativeDense
from rlcb.kernels.library import Library


class NativePolicy:
    """Samples actions of a softmax policy with A actions, whose hidden layer has H units."""

    def __init__(self, library: Library, dense: NativeDense, policy: nn.Linear, value: nn.Linear) -> None:
        self._act, self.dense = library.act, dense
        self.parameters = [policy.weight, policy.bias, value.weight, value.bias]
        self.sizes = (policy.in_features, policy.out_features)

    def __call__(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions (B,) int64, their log-probabilities (B,) and values (B,), both float32.

        Takes features (B, F) and noise (B,), float64 and uniform in [0, 1), for inverse transform sampling.
        """
        hidden, noise = self.dense.forward(features.contiguous()), noise.contiguous()
        rows = len(hidden)
        actions = torch.empty(rows, dtype=torch.int64)
        log_probs, values = torch.empty(rows), torch.empty(rows)
        tensors = (hidden, *self.parameters, noise, actions, log_probs, values)
        self._act(*(each.data_ptr() for each in tensors), rows, *self.sizes)
        return actions, log_probs, values
