"""Unrolls in shared memory: actors write them, learners learn from them, and each lies in a slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcb.envs.spaces import Spaces
from rlcb.errors import RunError
from rlcb.processes.shared_memory import Layout, layout_bytes, views
from rlcb.rl.rollout_buffer import RolloutBuffer, rollout_bytes
from rlcb.rl.statistics import Episode
from rlcb.rl.timing import PHASES

ABSURD_FRAME = 0xA5
ABSURD_ACTION = -(2**40)


@dataclass(frozen=True)
class StoreSize:
    """How many slots and actors there are, and how large an unroll is: n_steps of num_envs environments."""

    slots: int
    actors: int
    n_steps: int
    num_envs: int
    spaces: Spaces


def header_layout(size: StoreSize) -> Layout:
    """What is known of every slot and of every actor, beside the unrolls."""
    integers, doubles = np.dtype(np.int64), np.dtype(np.float64)
    observation = np.dtype(size.spaces.observation_dtype)
    samples = size.n_steps * size.num_envs
    shape = size.spaces.observation_shape
    return {
        # The process that writes or wrote the slot: 1 + actor + actors * generation; 0 before one has it.
        "owner": ((size.slots,), integers),
        "version": ((size.slots,), integers),  # of the parameters that acted
        "number": ((size.slots,), integers),  # of the unroll, by actor
        "fresh": ((size.slots,), np.dtype(np.bool_)),  # whether its environments were begun anew before it
        "last_observations": ((size.slots, size.num_envs, *shape), observation),  # after the last step
        "num_episodes": ((size.slots,), integers),
        "episodes": ((size.slots, samples, len(Episode._fields)), doubles),
        "begun": ((size.actors,), integers),  # unrolls that each actor has begun
        "claims": ((size.actors,), integers),  # odd while an actor may have taken a slot but not said so
        "threads": ((size.actors,), integers),
        "phases": ((size.actors, len(PHASES)), doubles),
        "finished": ((1,), integers),  # whether actors may leave
    }


def store_bytes(size: StoreSize) -> int:
    rollout = rollout_bytes(size.n_steps, size.slots * size.num_envs, size.spaces)
    return layout_bytes(header_layout(size)) + rollout


class UnrollStore:
    """All slots as the columns of one time-major rollout, so that any set of them is a set of columns."""

    owner: NDArray[np.int64]
    version: NDArray[np.int64]
    number: NDArray[np.int64]
    fresh: NDArray[np.bool_]
    last_observations: NDArray[Any]
    num_episodes: NDArray[np.int64]
    episodes: NDArray[np.float64]
    begun: NDArray[np.int64]
    claims: NDArray[np.int64]
    threads: NDArray[np.int64]
    phases: NDArray[np.float64]
    finished: NDArray[np.int64]

    def __init__(self, size: StoreSize, memory: Any) -> None:
        """`memory` is a writable buffer of `store_bytes`, zeros at first."""
        self.size = size
        header = header_layout(size)
        for name, array in views(header, memory).items():
            setattr(self, name, array)
        rest = memoryview(memory)[layout_bytes(header) :]
        self.rollout = RolloutBuffer(size.n_steps, size.slots * size.num_envs, size.spaces, rest)

    def unroll(self, slot: int) -> RolloutBuffer:
        """A slot's own columns."""
        return self.rollout.columns(slot * self.size.num_envs, self.size.num_envs)

    def columns(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """The numbers of the columns of some slots, slot after slot."""
        first = np.asarray(slots, np.int64)[:, None] * self.size.num_envs
        return (first + np.arange(self.size.num_envs)).reshape(-1)

    def actor_of(self, slot: int) -> int:
        return (int(self.owner[slot]) - 1) % self.size.actors

    def write_episodes(self, slot: int, episodes: list[Episode]) -> None:
        if episodes:
            self.episodes[slot, : len(episodes)] = episodes
        self.num_episodes[slot] = len(episodes)

    def read_episodes(self, slot: int) -> list[Episode]:
        rows = self.episodes[slot, : int(self.num_episodes[slot])].tolist()
        return [Episode(int(step), int(env), reward, int(length)) for step, env, reward, length in rows]

    def episodes_of(self, slots: Sequence[int]) -> list[Episode]:
        """The episodes that ended in a batch, whose slots are in the order of time.

        Several unrolls may be of one actor, so steps are counted from its first one in the batch on.
        """
        episodes: list[Episode] = []
        unrolls: Counter[int] = Counter()
        for slot in slots:
            first = unrolls[self.actor_of(slot)] * self.size.n_steps
            episodes += [each._replace(step=first + each.step) for each in self.read_episodes(slot)]
            unrolls[self.actor_of(slot)] += 1
        return episodes

    def fill_with_sentinel(self, slot: int) -> None:
        """Make every cell of an unroll one that no actor writes."""
        part = self.unroll(slot)
        for array in (part.observations, self.last_observations[slot]):
            array[...] = ABSURD_FRAME if array.dtype == np.uint8 else np.nan
        part.actions[...] = ABSURD_ACTION
        for floats in (part.log_probs, part.values, part.bootstrap_values, part.rewards):
            floats[...] = np.nan

    def require_written(self, slot: int) -> None:
        """Raise RunError if a cell of an unroll is still what `fill_with_sentinel` wrote."""
        part = self.unroll(slot)
        unwritten = part.actions == ABSURD_ACTION
        for floats in (part.log_probs, part.values, part.bootstrap_values, part.rewards):
            unwritten |= np.isnan(floats)
        frames = part.observations.reshape(*part.actions.shape, -1)
        absurd = frames == ABSURD_FRAME if frames.dtype == np.uint8 else np.isnan(frames)
        unwritten |= absurd.all(-1)
        last = self.last_observations[slot].reshape(self.size.num_envs, -1)
        absurd = last == ABSURD_FRAME if last.dtype == np.uint8 else np.isnan(last)
        if unwritten.any() or absurd.all(-1).any():
            raise RunError(f"slot {slot} has cells that its actor did not write")
