"""Procgen's batched C++ environments as one gymnasium.vector.VectorEnv."""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rlcb.config.games import MAX_LEVEL
from rlcb.config.settings import EnvConfig
from rlcb.seeding import environment_seeds

with contextlib.redirect_stderr(io.StringIO()):  # importing gym prints that it is unmaintained
    from procgen import ProcgenGym3Env

NUM_ACTIONS = 15
IMAGE_SHAPE = (64, 64, 3)
RESET_ACTION = -1  # makes Procgen step without a key pressed, then end the episode


def load_pictures() -> None:
    """Decode Procgen's pictures, which it does once per process, so that forks of this process share them.

    Makes no native threads, because forks would not have them.
    """
    ProcgenGym3Env(num=1, env_name="coinrun", num_threads=0).close()


def level_options(config: EnvConfig) -> dict[str, int]:
    """Return Procgen's options num_levels and start_level.

    Procgen ignores start_level if num_levels is 0 (all levels), so num_levels is then set to the number of
    levels from start_level on.
    """
    if config.distribution_mode == "exploration":
        return {}
    if config.num_levels == 0 and config.start_level > 0:
        return {"num_levels": MAX_LEVEL - config.start_level, "start_level": config.start_level}
    return {"num_levels": config.num_levels or 0, "start_level": config.start_level}


class ProcgenVectorEnv(VectorEnv[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]):
    """Groups of Procgen environments as a vector environment with same-step autoreset.

    Each group steps in one native call. `envs` selects consecutive environments of all groups together; an
    environment's levels do not depend on which others are selected. Observations are uint8 (N, 64, 64, 3),
    rewards float32 (N,). Procgen reports a time-out as a termination and never shows the last frame of an
    episode. With `num_threads` > 0
    each group has that many native threads and all groups step at once; with 0 they step one after another
    in the calling thread. `max_episode_steps` truncates episodes; their final frames are missing, so it is
    for evaluation only.
    """

    def __init__(
        self,
        game: str,
        config: EnvConfig,
        group_seeds: Sequence[int],
        group_size: int,
        num_threads: int = 0,
        render: bool = False,
        max_episode_steps: int | None = None,
        envs: range | None = None,
    ) -> None:
        self.metadata = {
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "render_modes": ["rgb_array"],
            "render_fps": 15,
        }
        self.group_size = group_size
        envs = envs or range(group_size * len(group_seeds))
        self.num_envs = len(envs)
        self._selected = [
            range(max(envs.start - first, 0), min(envs.stop - first, group_size))
            for first in range(0, group_size * len(group_seeds), group_size)
        ]
        """The environments of each group that are here, by their numbers in the group."""
        self._rows = [
            slice(first - envs.start + part.start, first - envs.start + part.stop)
            for first, part in zip(range(0, group_size * len(group_seeds), group_size), self._selected)
        ]
        """The rows of each group in observations and actions."""
        self.max_episode_steps = max_episode_steps
        self.single_observation_space = gymnasium.spaces.Box(0, 255, IMAGE_SHAPE, np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)
        self.observation_space = gymnasium.vector.utils.batch_space(
            self.single_observation_space, self.num_envs
        )
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)
        self.render_mode = "rgb_array" if render else None
        self._options = {
            "env_name": game,
            "distribution_mode": config.distribution_mode,
            "num_threads": num_threads,
            "render_mode": self.render_mode,
            **level_options(config),
            **config.procgen.model_dump(),
        }
        self._groups: list[ProcgenGym3Env] = []
        self._build(group_seeds)

    def _build(self, group_seeds: Sequence[int]) -> None:
        """Replace all groups by new ones with these seeds."""
        self._close_groups()
        self._groups = [
            self._make_group(seed, selected)
            for seed, selected in zip(group_seeds, self._selected, strict=True)
        ]
        for group in self._groups:
            # An option of gym3 that Procgen's constructor lacks: `observe` returns its arrays without a copy.
            # _observe copies each frame once.
            group._reuse_arrays = True
        self._episode_steps = np.zeros(self.num_envs, np.int64)
        self._fresh = True

    def _make_group(self, seed: int, selected: range) -> ProcgenGym3Env:
        """Return the selected environments of the group with this seed.

        Procgen derives the stream of an environment from the group's seed and from its place in the group.
        For a part of a group, this method makes the whole group and copies the states of the part.
        """
        whole = self._make(self.group_size, seed)
        if len(selected) == self.group_size:
            return whole
        states = whole.get_state()[selected.start : selected.stop]
        whole.close()
        part = self._make(len(selected), seed)
        part.set_state(states)
        return part

    def _make(self, num: int, seed: int) -> ProcgenGym3Env:
        """Return `num` environments of Procgen.

        Opening its library holds a lock that the end of an environment takes as well. If garbage collection
        ended a forgotten environment meanwhile, this thread would wait for itself.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            return ProcgenGym3Env(num=num, rand_seed=seed, **self._options)
        finally:
            if collects:
                gc.enable()

    def _observe(self) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_]]:
        """Return new arrays: observations (N, 64, 64, 3), rewards of the last step (N,), and whether each
        observation is the first of an episode (N,)."""
        observations = np.empty((self.num_envs, *IMAGE_SHAPE), np.uint8)
        rewards = np.empty(self.num_envs, np.float32)
        first = np.empty(self.num_envs, np.bool_)
        for rows, group in zip(self._rows, self._groups, strict=True):
            rewards[rows], images, first[rows] = group.observe()
            observations[rows] = images["rgb"]
        return observations, rewards, first

    def _act(self, actions: NDArray[Any]) -> None:
        for rows, group in zip(self._rows, self._groups, strict=True):
            group.act(actions[rows])

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start new episodes and return their first observations (N, 64, 64, 3).

        `seed`, one number or one per group, rebuilds the environments. Raises ValueError for another number
        of seeds.
        """
        if seed is not None:
            seeds = (
                [seed + index for index in range(len(self._groups))] if isinstance(seed, int) else list(seed)
            )
            if len(seeds) != len(self._groups) or None in seeds:
                raise ValueError(f"expected one seed, or one for each of {len(self._groups)} groups")
            self._build([int(each) for each in seeds if each is not None])
        elif not self._fresh:
            self._act(np.full(self.num_envs, RESET_ACTION, np.int32))
        self._episode_steps[:] = 0
        return self._observe()[0], {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every environment with its action (N,). After the end of an episode, the observation is the
        first one of the next episode."""
        self._fresh = False
        actions = np.asarray(actions, np.int32)
        capped = np.zeros(self.num_envs, np.bool_)
        self._episode_steps += 1
        if self.max_episode_steps is not None:
            capped = self._episode_steps >= self.max_episode_steps
            actions = np.where(capped, RESET_ACTION, actions)
        self._act(actions)
        observations, rewards, first = self._observe()
        self._episode_steps[first] = 0
        return observations, rewards, first & ~capped, first & capped, {}

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Return a frame (512, 512, 3) of every environment; None if made without `render`."""
        if self.render_mode is None:
            return None
        return tuple(info["rgb"] for group in self._groups for info in group.get_info())

    def level_seeds(self) -> NDArray[np.int64]:
        """Return the number of each environment's level (N,)."""
        return np.array([info["level_seed"] for group in self._groups for info in group.get_info()], np.int64)

    def restart(self, group_seeds: Sequence[np.random.SeedSequence]) -> NDArray[np.uint8]:
        """Start new episodes with one seed per group; return the first observations."""
        return self.reset(seed=[environment_seeds(group, 1)[0] for group in group_seeds])[0]

    def get_state(self) -> list[bytes]:
        """Return the whole state of each environment with its random streams, about 40 kB each."""
        return [state for group in self._groups for state in group.get_state()]

    def set_state(self, states: Sequence[bytes]) -> NDArray[np.uint8]:
        """Restore a saved state in each environment and return the observations."""
        for rows, group in zip(self._rows, self._groups, strict=True):
            group.set_state(states[rows])
        self._fresh = False
        return self._observe()[0]

    def _close_groups(self) -> None:
        for group in self._groups:
            group.close()
        self._groups = []

    def close_extras(self, **kwargs: Any) -> None:
        self._close_groups()
