"""A policy whose body computes in int8, to measure whether IMPALA's actors would be faster. No run uses it.

Its actions are not quite the float32 network's, for which V-trace would correct as it does for parameters
that are some updates old: the log-probabilities that are stored would be those of this policy.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn

from rlcb.rl.models import ActorCritic


class Int8Policy(nn.Module):
    """Called like the model that it follows; the heads, and what comes out, are float32.

    Weights are rounded to 8 bits with a scale for each channel, activations with one for each layer, by the
    ranges that they have on the observations of a refresh.
    """

    def __init__(self, model: ActorCritic, ranges_every: int) -> None:
        """Each refresh rounds the weights; every `ranges_every`-th also measures the activations' ranges."""
        super().__init__()
        self.model = model
        self.ranges_every = ranges_every
        self.refreshes = 0

    def refresh(self, observations: Tensor) -> None:
        """Take over the model's parameters after they changed."""
        if self.refreshes % self.ranges_every == 0:
            self._convert(self._pixels(observations))
        else:
            for name, layer in self._layers:
                source = self.model.body.get_submodule(name)
                assert isinstance(source, (nn.Conv2d, nn.Linear)) and source.bias is not None
                layer.set_weight_bias(rounded(source.weight.detach()), source.bias.detach())
        self.refreshes += 1

    def _convert(self, pixels: Tensor) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that these functions will move to another package
            from torch.ao.quantization import (
                MinMaxObserver,
                PerChannelMinMaxObserver,
                QConfig,
                QConfigMapping,
            )
            from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

            torch.backends.quantized.engine = "onednn"
            scheme = QConfig(  # type: ignore[no-untyped-call]
                activation=MinMaxObserver.with_args(dtype=torch.quint8),
                weight=PerChannelMinMaxObserver.with_args(
                    dtype=torch.qint8, qscheme=torch.per_channel_symmetric
                ),
            )
            body = copy.deepcopy(self.model.body).eval()
            prepared = prepare_fx(body, QConfigMapping().set_global(scheme), (pixels,))
            with torch.no_grad():
                prepared(pixels)
            self.body = convert_fx(prepared)
        self._layers = [
            (name, layer)
            for name, layer in self.body.named_modules()
            if hasattr(layer, "set_weight_bias") and hasattr(layer, "weight")
        ]

    def _pixels(self, observations: Tensor) -> Tensor:
        return observations.permute(0, 3, 1, 2).to(torch.float32).mul_(1 / 255)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(self._pixels(observations))
        return self.model.policy(features), self.model.value(features).squeeze(-1)


def rounded(weight: Tensor) -> Tensor:
    """Weights (C, ...) as int8 with one scale a channel."""
    scales = weight.flatten(1).abs().amax(1).clamp_(min=1e-8).double() / 127
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    return torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
