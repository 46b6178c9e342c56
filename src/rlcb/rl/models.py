"""Policy and value networks: the IMPALA-CNN and the Nature CNN for images, an MLP for vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcb.config.settings import KernelsSetting, ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.errors import UsageError
from rlcb.kernels.build import KernelsUnavailable
from rlcb.kernels.dense import NativeDense
from rlcb.kernels.features import NativeFeatures
from rlcb.kernels.library import load
from rlcb.kernels.networks import ImpalaNetwork, NatureNetwork, Network, supported
from rlcb.kernels.policy import NativePolicy


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), with the same number of channels throughout."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, C, H, W)
        residual: Tensor = self.conv1(F.relu(self.conv0(F.relu(x)), inplace=True))
        return x + residual


class Body(nn.Module):
    """The layers before the heads: `features`, the convolutions if there are any, then `hidden`, the rest.

    They are separate so that the activation cache (rl/activation_cache.py) can hold the features.
    """

    out_features: int
    """The size of the output."""

    def features(self, x: Tensor) -> Tensor:  # (B, C, H, W) in [0, 1] or (B, D) -> (B, F)
        """Run the convolutions and flatten their output."""
        return x.flatten(1)

    def hidden(self, features: Tensor) -> Tensor:  # (B, F) -> (B, out_features)
        """Run the layers behind the convolutions."""
        return features

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(self.features(x))


class ImpalaCNN(Body):
    """The IMPALA-CNN of Espeholt et al. 2018, figure 3 (right).

    Each stage has a convolution, a max-pool and two residual blocks; a dense layer follows the last stage.
    """

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
        # Flattened in memory order (H, W, C): channels_last needs no copy for it, (C, H, W) would need one.
        return x.permute(0, 2, 3, 1).flatten(1)

    def hidden(self, features: Tensor) -> Tensor:  # (B, H' * W' * C') -> (B, hidden_size)
        return F.relu(self.dense(features))


class NatureCNN(Body):
    """The Nature CNN of Mnih et al. 2015: three convolutions and a dense layer."""

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
    """Dense tanh layers for vector observations."""

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
    """The network that every algorithm trains: one body, a policy head and a value head."""

    def __init__(self, body: Body, spaces: Spaces, precision: torch.dtype = torch.float32) -> None:
        """`precision` is the dtype of the body's computations; parameters and heads are float32."""
        super().__init__()
        self.spaces = spaces
        self.precision = precision
        self.body = body
        self.native: NativeFeatures | None = None
        """Computes the features on native kernels (rlcb/kernels); None: PyTorch's operators do."""
        self.native_dense: NativeDense | None = None
        """Computes the dense layer behind the convolutions on native kernels; None: PyTorch does."""
        self.native_policy: NativePolicy | None = None
        """Samples actions on native kernels, where they compute the dense layer; None: PyTorch does."""
        self.why_not_native: str | None = None
        """Why the setting "auto" found no native kernels on this machine."""
        self.policy = nn.Linear(body.out_features, spaces.num_actions)
        self.value = nn.Linear(body.out_features, 1)

    @property
    def kernels(self) -> str:
        """Which kernels compute the convolutions: native or torch."""
        return "torch" if self.native is None else "native"

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, A) and values (B,) of observations (B, *observation_shape), uint8 or float32."""
        return self.heads(self.features(observations))

    def features(self, observations: Tensor) -> Tensor:
        """Return the features (B, F) of observations (B, *observation_shape): the output of the convolutions,
        or the observations themselves for an MLP."""
        if self.native is not None:
            return self.native(observations)
        if self.spaces.is_image:
            # (B, H, W, C) memory seen as (B, C, H, W) is PyTorch's channels_last layout, so the only copy is
            # the conversion to floating point.
            observations = observations.permute(0, 3, 1, 2)
        x = observations.to(self.precision)
        if observations.dtype == torch.uint8:
            x.mul_(1 / 255)
        with self._autocast():
            return self.body.features(x)

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, A) and values (B,) of features (B, F)."""
        if self.native_dense is not None:
            hidden = self.native_dense(features)
        else:
            with self._autocast():
                hidden = self.body.hidden(features).float()
        return self.policy(hidden), self.value(hidden).squeeze(-1)

    @contextmanager
    def constant_weights(self) -> Iterator[None]:
        """Within this context the weights must stay as they are, so native kernels prepare them only once."""
        with ExitStack() as stack:
            for native in (self.native, self.native_dense):
                if native is not None:
                    stack.enter_context(native.constant_weights())
            yield

    def act(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sampled actions (N,) int64, their log-probabilities (N,) and values (N,), without a graph.

        Takes observations (N, *observation_shape), and noise (N,), float64 and uniform in [0, 1).
        """
        with torch.inference_mode():
            return self.sample(self.features(observations), noise)

    def sample(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `act` returns, from features (N, F) of the observations."""
        if self.native_policy is not None:
            return self.native_policy(features, noise)
        logits, values = self.heads(features)
        return (*sample_actions(logits, noise), values)

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.precision == torch.bfloat16)


def sample_actions(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample actions from a softmax policy by inverse transform sampling.

    Takes logits (N, A) and noise (N,) uniform in [0, 1); returns actions (N,) int64 and their
    log-probabilities (N,) float32.
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    cumulative = log_probs.double().exp().cumsum(-1)
    threshold = noise.unsqueeze(-1) * cumulative[:, -1:]  # the last sum is 1 up to floating-point error
    actions = (cumulative <= threshold).sum(-1)
    return actions, log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def make_model(
    config: ModelConfig, spaces: Spaces, seed: int, kernels: KernelsSetting = "torch"
) -> ActorCritic:
    """Build and initialise the network for an environment. The same seed gives the same weights.

    `kernels` is the setting hardware.kernels. Raises UsageError if the architecture does not fit the
    observations, or if native kernels are demanded and there are none.
    """
    architecture = config.architecture
    if architecture == "auto":
        architecture = "impala" if spaces.is_image else "mlp"
    if architecture != "mlp" and not spaces.is_image:
        raise UsageError(
            f"model.architecture = {architecture!r} needs images, not observations {spaces.observation_shape}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed))
        body: Body
        if architecture == "impala":
            body = ImpalaCNN(spaces.network_shape, config.impala_channels, config.hidden_size)
        elif architecture == "nature":
            body = NatureCNN(spaces.network_shape, config.hidden_size)
        else:
            body = MLP(math.prod(spaces.observation_shape), config.mlp_sizes)
        model = ActorCritic(body, spaces, getattr(torch, config.precision))
        initialise(model)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    choose_kernels(model, kernels)
    return model


def choose_kernels(model: ActorCritic, setting: KernelsSetting) -> None:
    """Make a network use native kernels if the setting and the machine allow it.

    Raises UsageError if the setting is "native" and that is not possible.
    """
    if setting == "torch":
        return
    body, reason = model.body, None
    if not isinstance(body, (ImpalaCNN, NatureCNN)):
        reason = "this network has no convolutions"
    elif model.precision != torch.float32:
        reason = f"they compute in float32, not in {model.precision}".replace("torch.", "")
    elif not supported([module for module in body.modules() if isinstance(module, nn.Conv2d)]):
        reason = "the channels of a convolution are not a multiple of 16"
    else:
        try:
            model.native = NativeFeatures(native_network(body, model.spaces))
            if NativeDense.supports(body.dense):
                model.native_dense = dense = NativeDense(load(), body.dense)
                model.native_policy = NativePolicy(load(), dense, model.policy, model.value)
        except KernelsUnavailable as error:
            reason = model.why_not_native = str(error)
    if reason is not None and setting == "native":
        raise UsageError(f"hardware.kernels = 'native': {reason}")


def native_network(body: ImpalaCNN | NatureCNN, spaces: Spaces) -> Network:
    """Return the convolutions of a body on the native kernels. Raises KernelsUnavailable."""
    library = load()
    channels, height, width = spaces.network_shape
    shape, is_bytes = (channels, height, width), spaces.observation_dtype == "uint8"
    if isinstance(body, NatureCNN):
        layers = [layer for layer in body.convolutions if isinstance(layer, nn.Conv2d)]
        return NatureNetwork(library, layers, shape, is_bytes)
    stages: list[list[nn.Conv2d]] = []
    for layer in body.stages:
        if isinstance(layer, nn.Conv2d):
            stages.append([layer])
        elif isinstance(layer, ResidualBlock):
            stages[-1] += [layer.conv0, layer.conv1]
    return ImpalaNetwork(library, stages, shape, is_bytes)


def torch_seed(seed: int) -> int:
    """Return a seed for torch's generator, which uses 32 bits. Seeds that fit stay as they are."""
    return seed if seed < 2**32 else int(np.random.SeedSequence(seed).generate_state(1)[0])


def initialise(model: ActorCritic) -> None:
    """Initialise all weights orthogonally and all biases with zero.

    The gain is sqrt(2) for a layer in front of a rectifier, 1 for other layers and for the value head, and
    0.01 for the policy head, so that the first policy is nearly uniform. The last convolution of each of n
    residual blocks has gain 1 / sqrt(n): with sqrt(2) everywhere, the sum over six blocks made the first
    values of the IMPALA-CNN 9.5 +- 2.8 on coinrun, where scaled returns are of the order of 1.
    """
    branches = [module.conv1 for module in model.modules() if isinstance(module, ResidualBlock)]
    unrectified = [module for module in getattr(model.body, "stages", ()) if isinstance(module, nn.Conv2d)]
    for module in model.body.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            gain = math.sqrt(2)
            if any(module is branch for branch in branches):
                gain = 1 / math.sqrt(len(branches))
            elif any(module is convolution for convolution in unrectified):
                gain = 1.0
            _orthogonal(module, gain)
    _orthogonal(model.policy, 0.01)
    _orthogonal(model.value, 1.0)


def _orthogonal(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


def largest_activation_bytes(config: ModelConfig, spaces: Spaces) -> int:
    """Return the bytes of the largest layer output for one sample.

    The default microbatch size follows from it: these activations should fit into the CPU caches.
    """
    if not spaces.is_image:
        return 4 * max(math.prod(spaces.observation_shape), *config.mlp_sizes)
    _, height, width = spaces.network_shape
    if config.architecture == "nature":
        return 4 * 32 * (height // 4) * (width // 4)
    return 4 * config.impala_channels[0] * height * width
