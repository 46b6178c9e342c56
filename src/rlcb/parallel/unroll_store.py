"""The unrolls of IMPALA in shared memory. Each lies in a slot: an actor writes it, the learner reads it.

T is training.n_steps, E the environments of an actor, S the number of slots. All slots together are one
time-major rollout [T, S * E, ...]; slot s is its columns s * E to (s + 1) * E.
"""

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

SENTINEL_PIXEL = 0xA5  # a frame that has no other value is unwritten
SENTINEL_ACTION = -(2**40)


@dataclass(frozen=True)
class StoreSize:
    """The size of a node's store."""

    slots: int
    actors: int
    n_steps: int
    """T, the steps of an unroll."""
    num_envs: int
    """E, the environments of an unroll."""
    spaces: Spaces
    seats: int = 0
    """How many actors of other machines the store has place for (gate.py)."""

    @property
    def writers(self) -> int:
        """The actors of this node, numbered from 0, and the seats, which follow them."""
        return self.actors + self.seats


def header_layout(size: StoreSize) -> Layout:
    """Return the arrays beside the unrolls: facts about every slot and every actor."""
    integers, doubles = np.dtype(np.int64), np.dtype(np.float64)
    observation = np.dtype(size.spaces.observation_dtype)
    samples = size.n_steps * size.num_envs
    shape = size.spaces.observation_shape
    return {
        "owner": ((size.slots,), integers),  # `owner_id` of the actor that took it; 0: none has
        "version": ((size.slots,), integers),  # of the parameters that acted: the number of updates
        "number": ((size.slots,), integers),  # of the unroll, counted by actor
        "fresh": ((size.slots,), np.dtype(np.bool_)),  # whether its environments were reset before it
        "last_observations": ((size.slots, size.num_envs, *shape), observation),  # after the last step
        "num_episodes": ((size.slots,), integers),
        "episodes": ((size.slots, samples, len(Episode._fields)), doubles),
        "seconds": ((size.slots,), doubles),  # that the unroll took to write
        "begun": ((size.writers,), integers),  # unrolls that each actor has begun
        "claims": ((size.writers,), integers),  # odd while an actor may have taken a slot but not said so
        "threads": ((size.actors,), integers),
        "phases": ((size.writers, len(PHASES)), doubles),
        "finished": ((1,), integers),  # whether actors may leave
    }


def store_bytes(size: StoreSize) -> int:
    """Return the bytes of shared memory that an UnrollStore needs."""
    rollout = rollout_bytes(size.n_steps, size.slots * size.num_envs, size.spaces)
    return layout_bytes(header_layout(size)) + rollout


class UnrollStore:
    """The slots of a node, and facts about them (`header_layout`). Used by its actors and learners.

    Since the slots are columns of one rollout, a batch is a set of columns and is never copied.
    """

    owner: NDArray[np.int64]
    version: NDArray[np.int64]
    number: NDArray[np.int64]
    fresh: NDArray[np.bool_]
    last_observations: NDArray[Any]
    num_episodes: NDArray[np.int64]
    episodes: NDArray[np.float64]
    seconds: NDArray[np.float64]
    begun: NDArray[np.int64]
    claims: NDArray[np.int64]
    threads: NDArray[np.int64]
    phases: NDArray[np.float64]
    finished: NDArray[np.int64]

    def __init__(self, size: StoreSize, memory: Any) -> None:
        """`memory` is a writable buffer of `store_bytes(size)` bytes, zeros at first."""
        self.size = size
        header = header_layout(size)
        for name, array in views(header, memory).items():
            setattr(self, name, array)
        rest = memoryview(memory)[layout_bytes(header) :]
        self.rollout = RolloutBuffer(size.n_steps, size.slots * size.num_envs, size.spaces, rest)

    def unroll(self, slot: int) -> RolloutBuffer:
        """Return the unroll in a slot, as a view: observations [T, E, ...], the other arrays [T, E]."""
        return self.rollout.columns(slot * self.size.num_envs, self.size.num_envs)

    def columns(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """Return the columns (len(slots) * E,) of some slots in `rollout`, slot after slot."""
        first = np.asarray(slots, np.int64)[:, None] * self.size.num_envs
        return (first + np.arange(self.size.num_envs)).reshape(-1)

    def owner_id(self, actor: Any, generation: Any) -> Any:
        """Return the number, above 0, that an actor process writes into `owner`. Arguments may be arrays."""
        return 1 + actor + self.size.writers * generation

    def actor_of(self, slot: int) -> int:
        """Return the number of the actor that wrote a slot, whatever its generation."""
        return (int(self.owner[slot]) - 1) % self.size.writers

    def write_episodes(self, slot: int, episodes: list[Episode]) -> None:
        """Store the episodes that ended in a slot's unroll."""
        if episodes:
            self.episodes[slot, : len(episodes)] = episodes
        self.num_episodes[slot] = len(episodes)

    def read_episodes(self, slot: int) -> list[Episode]:
        """Return the episodes that ended in a slot's unroll."""
        rows = self.episodes[slot, : int(self.num_episodes[slot])].tolist()
        return [Episode(int(step), int(env), reward, int(length)) for step, env, reward, length in rows]

    def episodes_of(self, slots: Sequence[int]) -> list[Episode]:
        """Return the episodes that ended in a batch, whose slots are sorted by time.

        A batch may hold several unrolls of an actor: steps count from the start of its first one.
        """
        episodes: list[Episode] = []
        unrolls: Counter[int] = Counter()
        for slot in slots:
            first = unrolls[self.actor_of(slot)] * self.size.n_steps
            episodes += [each._replace(step=first + each.step) for each in self.read_episodes(slot)]
            unrolls[self.actor_of(slot)] += 1
        return episodes

    def fill_with_sentinel(self, slot: int) -> None:
        """Fill an unroll with values that no actor writes, so that unwritten cells show."""
        part = self.unroll(slot)
        for array in (part.observations, self.last_observations[slot]):
            array[...] = SENTINEL_PIXEL if array.dtype == np.uint8 else np.nan
        part.actions[...] = SENTINEL_ACTION
        for floats in (part.log_probs, part.values, part.bootstrap_values, part.rewards):
            floats[...] = np.nan

    def require_written(self, slot: int) -> None:
        """Raise RunError if a cell of an unroll is still what `fill_with_sentinel` wrote."""
        part = self.unroll(slot)
        unwritten = part.actions == SENTINEL_ACTION
        for floats in (part.log_probs, part.values, part.bootstrap_values, part.rewards):
            unwritten |= np.isnan(floats)
        frames = part.observations.reshape(*part.actions.shape, -1)
        sentinel = frames == SENTINEL_PIXEL if frames.dtype == np.uint8 else np.isnan(frames)
        unwritten |= sentinel.all(-1)
        last = self.last_observations[slot].reshape(self.size.num_envs, -1)
        sentinel = last == SENTINEL_PIXEL if last.dtype == np.uint8 else np.isnan(last)
        if unwritten.any() or sentinel.all(-1).any():
            raise RunError(f"slot {slot} has cells that its actor did not write")
