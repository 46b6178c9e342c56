"""The observation and action spaces of an environment, as the networks need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Spaces:
    """The shapes, dtypes and counts that a network needs to fit an environment."""

    observation_shape: tuple[int, ...]
    """(H, W, C) for images, in memory order; (D,) for vectors."""
    observation_dtype: str
    num_actions: int

    @property
    def is_image(self) -> bool:
        """Whether observations are images."""
        return len(self.observation_shape) == 3

    @property
    def network_shape(self) -> tuple[int, ...]:
        """The shape of one observation as the network sees it: (C, H, W) for images."""
        return tuple(np.roll(self.observation_shape, 1).tolist()) if self.is_image else self.observation_shape

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for a checkpoint."""
        return {
            "observation_shape": list(self.observation_shape),
            "observation_dtype": self.observation_dtype,
            "num_actions": self.num_actions,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Spaces:
        """Return the spaces that `to_dict` saved."""
        return cls(tuple(data["observation_shape"]), data["observation_dtype"], data["num_actions"])
