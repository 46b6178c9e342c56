"""Generalised advantage estimation (Schulman et al. 2016, equations 11 to 16)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def generalised_advantages(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    gamma: float,
    gae_lambda: float,
) -> tuple[Floats, Floats]:
    """Return the advantages and returns of a rollout, (T, N) float32 each.

    | argument    | shape  | meaning                                                                        |
    |-------------|--------|--------------------------------------------------------------------------------|
    | rewards     | (T, N) | r_t                                                                            |
    | values      | (T, N) | V(s_t)                                                                         |
    | next_values | (T, N) | V of the true successor of s_t: of the final observation where a step truncates |
    | terminated  | (T, N) | the episode ended in a terminal state with this step: its future is worth 0    |
    | truncated   | (T, N) | the episode was cut after this step: its future is worth next_values           |

        delta_t = r_t + gamma * next_values_t * (1 - terminated_t) - values_t
        A_t = delta_t + gamma * lambda * A_{t+1}

    A_{t+1} is 0 after the last row and after a step that ends an episode in either way. A step with both
    flags is a termination. The returns are A_t + values_t.
    """
    continues = np.float32(1) - terminated
    deltas = rewards + np.float32(gamma) * next_values * continues - values
    decay = np.float32(gamma * gae_lambda) * ~(terminated | truncated)
    advantages = np.empty_like(deltas)
    following = np.zeros_like(deltas[0])
    for t in range(len(rewards) - 1, -1, -1):
        following = deltas[t] + decay[t] * following
        advantages[t] = following
    return advantages, advantages + values
