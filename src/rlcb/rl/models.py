"""Policy and value networks: the IMPALA residual network, the Nature network, an MLP for vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcb.config.settings import ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.errors import UsageError


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), all of one width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, C, H, W)
        residual: Tensor = self.conv1(F.relu(self.conv0(F.relu(x)), inplace=True))
        return x + residual


class Body(nn.Module):
    """What stands before the heads: convolutions, if there are any, and the layers behind them.

    The two are apart, so that what the convolutions make of observations can be kept and gone on from.
    """

    out_features: int

    def features(self, x: Tensor) -> Tensor:  # (B, C, H, W) in [0, 1] or (B, D) -> (B, F)
        """What the convolutions make of observations, flat."""
        return x.flatten(1)

    def hidden(self, features: Tensor) -> Tensor:  # (B, F) -> (B, out_features)
        """What the layers behind them make of that."""
        return features

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(self.features(x))


class ImpalaCNN(Body):
    """The residual network of Espeholt et al. 2018, figure 3 (right): conv, max-pool, two residual blocks a
    stage."""

    def __init__(self, in_shape: tuple[int, ...], channels: tuple[int, ...], hidden_size: int) -> None:
        super().__init__()
        in_channels, height, width = in_shape
        stages: list[nn.Module] = []
        for out_channels in channels:
            stages += [
                nn.Conv2d(in_channels, out_channels, 3, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                ResidualBlock(out_channels),
                ResidualBlock(out_channels),
            ]
            in_channels, height, width = out_channels, (height + 1) // 2, (width + 1) // 2
        self.stages = nn.Sequential(*stages)
        self.dense = nn.Linear(in_channels * height * width, hidden_size)
        self.out_features = hidden_size

    def features(self, x: Tensor) -> Tensor:  # (B, C, H, W) in [0, 1] -> (B, H' * W' * C')
        x = F.relu(self.stages(x), inplace=True)
        # Flattened in memory order (H, W, C): free for channels_last, where C, H, W order would copy.
        return x.permute(0, 2, 3, 1).flatten(1)

    def hidden(self, features: Tensor) -> Tensor:  # (B, H' * W' * C') -> (B, hidden_size)
        return F.relu(self.dense(features))


class NatureCNN(Body):
    """The three convolutions of Mnih et al. 2015 and a dense layer."""

    def __init__(self, in_shape: tuple[int, ...], hidden_size: int) -> None:
        super().__init__()
        in_channels, height, width = in_shape
        layers: list[nn.Module] = []
        for out_channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            layers += [nn.Conv2d(in_channels, out_channels, kernel, stride), nn.ReLU(inplace=True)]
            in_channels = out_channels
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if height < 1 or width < 1:
            raise UsageError(
                f"model.architecture = 'nature' needs images of at least 36 x 36, not {in_shape[1:]}"
            )
        self.convolutions = nn.Sequential(*layers)
        self.dense = nn.Linear(in_channels * height * width, hidden_size)
        self.out_features = hidden_size

    def features(self, x: Tensor) -> Tensor:  # (B, C, H, W) in [0, 1] -> (B, H' * W' * C')
        features: Tensor = self.convolutions(x).permute(0, 2, 3, 1).flatten(1)
        return features

    def hidden(self, features: Tensor) -> Tensor:  # (B, H' * W' * C') -> (B, hidden_size)
        return F.relu(self.dense(features))


class MLP(Body):
    """Tanh layers for vector observations."""

    def __init__(self, in_features: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        widths = (in_features, *sizes)
        layers: list[nn.Module] = []
        for width, following in zip(widths, sizes, strict=False):
            layers += [nn.Linear(width, following), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        self.out_features = widths[-1]

    def hidden(self, features: Tensor) -> Tensor:  # (B, D) -> (B, sizes[-1])
        hidden: Tensor = self.layers(features)
        return hidden


class ActorCritic(nn.Module):
    """One body, two heads: action logits and a state value."""

    def __init__(
        self,
        body: Body,
        out_features: int,
        spaces: Spaces,
        precision: torch.dtype = torch.float32,
    ) -> None:
        """`precision` is what the body computes in; parameters and heads are float32."""
        super().__init__()
        self.spaces = spaces
        self.precision = precision
        self.body = body
        self.policy = nn.Linear(out_features, spaces.num_actions)
        self.value = nn.Linear(out_features, 1)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """(B, *observation_shape) of the environment's dtype -> logits (B, num_actions), values (B,)."""
        return self.heads(self.features(observations))

    def features(self, observations: Tensor) -> Tensor:
        """(B, *observation_shape) -> (B, F), by the convolutions if there are any."""
        if self.spaces.is_image:
            # The permuted view of (B, H, W, C) memory is PyTorch's channels_last layout: nothing is copied
            # but to floating point.
            observations = observations.permute(0, 3, 1, 2)
        x = observations.to(self.precision)
        if observations.dtype == torch.uint8:
            x.mul_(1 / 255)
        with self._computing():
            return self.body.features(x)

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(B, F) -> logits (B, num_actions), values (B,), by all layers behind the convolutions."""
        with self._computing():
            hidden = self.body.hidden(features).float()
        return self.policy(hidden), self.value(hidden).squeeze(-1)

    def _computing(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.precision == torch.bfloat16)


def make_model(config: ModelConfig, spaces: Spaces, seed: int) -> ActorCritic:
    """Build and initialise the network for an environment; the same seed gives the same weights.

    Raises UsageError for a network that does not fit the observation.
    """
    architecture = config.architecture
    if architecture == "auto":
        architecture = "impala" if spaces.is_image else "mlp"
    if architecture != "mlp" and not spaces.is_image:
        raise UsageError(
            f"model.architecture = {architecture!r} needs images, not observations {spaces.observation_shape}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body: Body
        if architecture == "impala":
            body = ImpalaCNN(spaces.network_shape, config.impala_channels, config.hidden_size)
        elif architecture == "nature":
            body = NatureCNN(spaces.network_shape, config.hidden_size)
        else:
            body = MLP(math.prod(spaces.observation_shape), config.mlp_sizes)
        model = ActorCritic(body, body.out_features, spaces, getattr(torch, config.precision))
        initialise(model)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def initialise(model: ActorCritic) -> None:
    """Orthogonal weights and zero biases.

    Gain sqrt(2) for a layer that feeds a rectifier, 1 for one that does not and for the value head; 0.01 for
    the policy head, so that the first policy is nearly uniform. The last convolution of each of n residual
    blocks has gain 1 / sqrt(n): with sqrt(2) everywhere the sum over six blocks left the IMPALA network's
    first values at 9.5 +- 2.8 on coinrun, where scaled returns are of the order of 1.
    """
    branches = [module.conv1 for module in model.modules() if isinstance(module, ResidualBlock)]
    unrectified = [module for module in getattr(model.body, "stages", ()) if isinstance(module, nn.Conv2d)]
    for module in model.body.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            gain = math.sqrt(2)
            if any(module is each for each in branches):
                gain = 1 / math.sqrt(len(branches))
            elif any(module is each for each in unrectified):
                gain = 1.0
            _orthogonal(module, gain)
    _orthogonal(model.policy, 0.01)
    _orthogonal(model.value, 1.0)


def _orthogonal(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


def largest_activation_bytes(config: ModelConfig, spaces: Spaces) -> int:
    """Bytes of the largest layer output for one sample, which is what a microbatch has to fit into the
    caches."""
    if not spaces.is_image:
        return 4 * max(math.prod(spaces.observation_shape), *config.mlp_sizes)
    _, height, width = spaces.network_shape
    if config.architecture == "nature":
        return 4 * 32 * (height // 4) * (width // 4)
    return 4 * config.impala_channels[0] * height * width
