"""The rollout buffer: everything that a policy observed and did in N environments over T steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcb.envs.spaces import Spaces
from rlcb.processes.shared_memory import Layout, layout_bytes, views


def rollout_layout(n_steps: int, num_envs: int, spaces: Spaces) -> Layout:
    """Return the shape and dtype of every array of a rollout by name, in the order of memory."""
    grid = (n_steps, num_envs)
    return {
        "observations": ((*grid, *spaces.observation_shape), np.dtype(spaces.observation_dtype)),
        "actions": (grid, np.dtype(np.int64)),
        "log_probs": (grid, np.dtype(np.float32)),  # of the actions, by the policy that acted
        "values": (grid, np.dtype(np.float32)),  # V(s_t), by the network that acted
        "bootstrap_values": (
            grid,
            np.dtype(np.float32),
        ),  # V of the successor of s_t, also where it is not in the next row
        "rewards": (grid, np.dtype(np.float32)),  # raw
        "terminated": (grid, np.dtype(np.bool_)),
        "truncated": (grid, np.dtype(np.bool_)),
        # Computed once the rollout is complete:
        "scaled_rewards": (grid, np.dtype(np.float32)),
        "advantages": (grid, np.dtype(np.float32)),
        "returns": (grid, np.dtype(np.float32)),
    }


def rollout_bytes(n_steps: int, num_envs: int, spaces: Spaces) -> int:
    """Return the bytes of a rollout, with each array aligned to a cache line."""
    return layout_bytes(rollout_layout(n_steps, num_envs, spaces))


class RolloutBuffer:
    """Time-major arrays (T, N, ...) in one block of memory; `rollout_layout` says what each one holds.

    The block is private memory or any writable buffer of `rollout_bytes` bytes, for example memory that
    processes share or a mapped file.
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
        """T * N."""
        return self.n_steps * self.num_envs

    def mean_reward(self, columns: slice | NDArray[np.int64] = slice(None)) -> float:
        """Return the mean raw reward of a timestep, of all environments or of some columns."""
        return float(self.rewards[:, columns].mean(dtype=np.float64))

    def flat(self, name: str) -> NDArray[Any]:
        """Return an array as (T * N, ...), never a copy: sample t * N + i is step t of environment i."""
        array: NDArray[Any] = getattr(self, name)
        view = array.view()
        view.shape = (self.num_samples, *array.shape[2:])
        return view

    def columns(self, first: int, count: int) -> RolloutBuffer:
        """Return the rollout of environments first, ..., first + count - 1: views of the same memory."""
        part = object.__new__(RolloutBuffer)
        part.n_steps, part.num_envs, part.spaces = self.n_steps, count, self.spaces
        for name in rollout_layout(self.n_steps, count, self.spaces):
            setattr(part, name, getattr(self, name)[:, first : first + count])
        return part
