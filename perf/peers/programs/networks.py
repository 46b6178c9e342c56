"""The IMPALA and the Nature CNN as they are usually written: contiguous tensors, channels first."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions around which the input is added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, C, H, W)
        change: Tensor = self.second(F.relu(self.first(F.relu(x))))
        return x + change


def impala(hidden_size: int) -> nn.Sequential:
    """(B, 3, 64, 64) in [0, 1] -> (B, hidden_size): Espeholt et al. 2018, 16, 32 and 32 channels."""
    layers: list[nn.Module] = []
    before, size = 3, 64
    for channels in (16, 32, 32):
        layers += [nn.Conv2d(before, channels, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
        layers += [Residual(channels), Residual(channels)]
        before, size = channels, size // 2
    flat = before * size * size
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(flat, hidden_size), nn.ReLU())


def nature(hidden_size: int) -> nn.Sequential:
    """(B, 3, 64, 64) in [0, 1] -> (B, hidden_size): Mnih et al. 2015."""
    layers: list[nn.Module] = []
    before, size = 3, 64
    for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        layers += [nn.Conv2d(before, channels, kernel, stride), nn.ReLU()]
        before, size = channels, (size - kernel) // stride + 1
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * size * size, hidden_size), nn.ReLU())


NETWORKS = {"impala": impala, "nature": nature}
