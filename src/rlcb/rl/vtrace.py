"""V-trace targets (Espeholt et al. 2018, "IMPALA", section 4.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Thresholds(NamedTuple):
    """Upper bounds of the importance ratios pi(a|s) / mu(a|s)."""

    rho: float = 1.0
    """rho-bar, for the temporal differences: decides to which policy's values V converges."""
    pg_rho: float = 1.0
    """For the advantages of the policy gradient."""
    c: float = 1.0
    """c-bar, for the traces: decides how fast V converges."""


DEFAULT_THRESHOLDS = Thresholds()


def vtrace(
    log_ratios: Floats,
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    gamma: float,
    trace_lambda: float = 1.0,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> tuple[Floats, Floats]:
    """Return the value targets and policy-gradient advantages of unrolls, (T, N) float32 each.

    | argument    | shape  | meaning                                                                        |
    |-------------|--------|--------------------------------------------------------------------------------|
    | log_ratios  | (T, N) | log pi(a_t|s_t) - log mu(a_t|s_t): the learner's policy over the behaviour's   |
    | rewards     | (T, N) | r_t                                                                            |
    | values      | (T, N) | V(s_t) of the learner's network                                                |
    | next_values | (T, N) | V of the true successor of s_t: of the final observation where a step truncates |
    | terminated  | (T, N) | the episode ended in a terminal state with this step: its future is worth 0    |
    | truncated   | (T, N) | the episode was cut after this step: its future is worth next_values           |

    Equation 1 as the recursion of its remark 1, with rho_t = min(rho-bar, ratio) and, as in remark 2,
    c_t = lambda * min(c-bar, ratio):

        v_t = V(s_t) + rho_t (r_t + gamma V(s_{t+1}) - V(s_t)) + gamma c_t (v_{t+1} - V(s_{t+1}))

    and the advantage is min(pg_rho, ratio) (r_t + gamma v_{t+1} - V(s_t)). After the last row and after a
    truncation V(s_{t+1}) replaces v_{t+1}; after a termination 0 does. A step with both flags is a
    termination.
    """
    ratios = np.exp(log_ratios)
    rhos = np.minimum(ratios, np.float32(thresholds.rho))
    traces = np.float32(gamma * trace_lambda) * np.minimum(ratios, np.float32(thresholds.c))
    traces *= ~(terminated | truncated)
    future = np.float32(gamma) * next_values * ~terminated
    deltas = rhos * (rewards + future - values)
    corrections = np.empty_like(deltas)  # v_t - V(s_t)
    following = np.zeros_like(deltas[0])
    for t in range(len(rewards) - 1, -1, -1):
        following = deltas[t] + traces[t] * following
        corrections[t] = following
    targets = values + corrections
    next_targets = np.array(next_values)
    continues = ~(terminated | truncated)[:-1]
    next_targets[:-1][continues] = targets[1:][continues]
    advantages = np.minimum(ratios, np.float32(thresholds.pg_rho)) * (
        rewards + np.float32(gamma) * next_targets * ~terminated - values
    )
    return targets, advantages
