"""The rollout: what a policy did in all environments over some steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcb.envs.spaces import Spaces
from rlcb.processes.shared_memory import Layout, layout_bytes, views


def rollout_layout(n_steps: int, num_envs: int, spaces: Spaces) -> Layout:
    """Name -> (shape, dtype) of every array of a rollout; T = n_steps, N = num_envs."""
    grid = (n_steps, num_envs)
    return {
        "observations": ((*grid, *spaces.observation_shape), np.dtype(spaces.observation_dtype)),
        "actions": (grid, np.dtype(np.int64)),
        "log_probs": (grid, np.dtype(np.float32)),  # of the behaviour policy, as stored when it acted
        "values": (grid, np.dtype(np.float32)),  # V(s_t) of the behaviour policy's network
        "bootstrap_values": (grid, np.dtype(np.float32)),  # V of the true successor of s_t
        "rewards": (grid, np.dtype(np.float32)),  # raw
        "terminated": (grid, np.dtype(np.bool_)),
        "truncated": (grid, np.dtype(np.bool_)),
        "scaled_rewards": (grid, np.dtype(np.float32)),  # written after the rollout is complete, as are
        "advantages": (grid, np.dtype(np.float32)),
        "returns": (grid, np.dtype(np.float32)),
    }


def rollout_bytes(n_steps: int, num_envs: int, spaces: Spaces) -> int:
    """Bytes that a rollout takes, each array aligned to a cache line."""
    return layout_bytes(rollout_layout(n_steps, num_envs, spaces))


class RolloutBuffer:
    """Time-major arrays (T, N, ...), named as in `rollout_layout`, laid one after another in one block of
    memory.

    The block is private memory unless one is given: any writable buffer of `rollout_bytes` bytes will do, so
    a rollout can as well lie in memory that processes share or in a mapped file.
    """

    observations: NDArray[Any]
    actions: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    values: NDArray[np.float32]
    bootstrap_values: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    scaled_rewards: NDArray[np.float32]
    advantages: NDArray[np.float32]
    returns: NDArray[np.float32]

    def __init__(self, n_steps: int, num_envs: int, spaces: Spaces, memory: Any = None) -> None:
        self.n_steps = n_steps
        self.num_envs = num_envs
        self.spaces = spaces
        block = np.empty(rollout_bytes(n_steps, num_envs, spaces), np.uint8) if memory is None else memory
        for name, array in views(rollout_layout(n_steps, num_envs, spaces), block).items():
            setattr(self, name, array)

    @property
    def num_samples(self) -> int:
        return self.n_steps * self.num_envs

    def flat(self, name: str) -> NDArray[Any]:
        """An array as (T * N, ...): sample t * N + i is step t of environment i. A view, never a copy."""
        array: NDArray[Any] = getattr(self, name)
        view = array.view()
        view.shape = (self.num_samples, *array.shape[2:])
        return view

    def columns(self, first: int, count: int) -> RolloutBuffer:
        """A view of `count` environments from `first` on: what one worker fills."""
        part = object.__new__(RolloutBuffer)
        part.n_steps, part.num_envs, part.spaces = self.n_steps, count, self.spaces
        for name in rollout_layout(self.n_steps, count, self.spaces):
            setattr(part, name, getattr(self, name)[:, first : first + count])
        return part
