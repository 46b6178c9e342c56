"""V-trace targets (Espeholt et al. 2018, "IMPALA", section 4.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Thresholds(NamedTuple):
    """Upper bounds of the importance ratios."""

    rho: float = 1.0
    """rho-bar, in the value targets: where the values converge to."""
    pg_rho: float = 1.0
    """In the policy gradient."""
    c: float = 1.0
    """c-bar, in the traces: how fast the values get there."""


NO_MORE_THAN_ON_POLICY = Thresholds()


def vtrace(
    log_ratios: Floats,
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    gamma: float,
    trace_lambda: float = 1.0,
    thresholds: Thresholds = NO_MORE_THAN_ON_POLICY,
) -> tuple[Floats, Floats]:
    """Value targets and policy-gradient advantages of unrolls.

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

    and the advantage is min(pg_rho, ratio) (r_t + gamma v_{t+1} - V(s_t)). After a step that ends an episode,
    and after the last row, there is no v_{t+1}: V(s_{t+1}) stands for it, or 0 after a termination. A step
    with both flags is a termination. Returns (targets, advantages), both (T, N) float32.
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
    inside = ~(terminated | truncated)[:-1]
    next_targets[:-1][inside] = targets[1:][inside]
    advantages = np.minimum(ratios, np.float32(thresholds.pg_rho)) * (
        rewards + np.float32(gamma) * next_targets * ~terminated - values
    )
    return targets, advantages
