"""MiniGrid's view as a vector for the MLP."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from numpy.typing import NDArray

CATEGORIES = (len(OBJECT_TO_IDX), len(COLOR_TO_IDX), len(STATE_TO_IDX))
"""How many kinds of objects, colours and states a field of the grid can have."""
ONE_HOT = [255 * np.eye(number, dtype=np.uint8) for number in CATEGORIES]


class OneHotView(gymnasium.ObservationWrapper[NDArray[np.uint8], Any, dict[str, Any]]):
    """Turns the view, uint8 (7, 7, 3), into zeros and ones, uint8 (980,) with 255 for one.

    Each of the 49 fields has a category for its object, its colour and its state: 11, 6 and 3 of them. Their
    numbers have no order, so a network learns from one input for each category. Networks divide uint8 by
    255. The mission and the direction, which is always up in the view, are left out.
    """

    def __init__(self, env: gymnasium.Env[dict[str, Any], Any]) -> None:
        super().__init__(env)
        view = env.observation_space["image"]  # type: ignore[index]
        self.size = int(np.prod(view.shape[:2])) * sum(CATEGORIES)
        self.observation_space = gymnasium.spaces.Box(0, 255, (self.size,), np.uint8)

    def observation(self, observation: dict[str, Any]) -> NDArray[np.uint8]:
        """Return the vector: 20 categories of the first field, then of the next ones, row by row."""
        view = observation["image"].reshape(-1, 3)
        parts = [one_hot[view[:, kind]] for kind, one_hot in enumerate(ONE_HOT)]
        vector: NDArray[np.uint8] = np.concatenate(parts, axis=1).reshape(-1)
        return vector
