"""Makes environments of every kind, Procgen or Gymnasium, as one gymnasium.vector.VectorEnv."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from rlcb.config.env_packages import load_package
from rlcb.config.games import GAMES, procgen_game, similar_game
from rlcb.config.settings import EnvConfig
from rlcb.envs import state as env_state
from rlcb.envs.layout import observation_layout, require_discrete
from rlcb.envs.procgen import ProcgenVectorEnv
from rlcb.envs.spaces import Spaces
from rlcb.envs.wrappers import make_arguments, wrappers_of
from rlcb.errors import EnvironmentFault, Interrupted, UsageError, first_line
from rlcb.seeding import environment_seeds


def make_vector_env(
    config: EnvConfig,
    group_seeds: Sequence[np.random.SeedSequence],
    group_size: int,
    num_threads: int = 0,
    render: bool = False,
    max_episode_steps: int | None = None,
    envs: range | None = None,
) -> ProcgenVectorEnv | GymnasiumVectorEnv:
    """Make N = len(group_seeds) * group_size environments; each group is seeded by its own seed.

    `envs` selects consecutive ones of these N, so that several processes can share a group: each process
    makes its own environments as if it had made all of them.
    Observations are uint8 or float32: images (N, H, W, C) or vectors (N, D). Actions are int64, counted from
    0. Autoreset is same-step; if environment i truncates in a step, `infos["final_obs"][i]` is the episode's
    last observation (Procgen has none). Raises UsageError for an unknown id and for spaces that no algorithm
    here supports.
    """
    game = procgen_game(config.id)
    if game is not None:
        seeds = [environment_seeds(group, 1)[0] for group in group_seeds]
        return ProcgenVectorEnv(game, config, seeds, group_size, num_threads, render, max_episode_steps, envs)
    envs = envs or range(group_size * len(group_seeds))
    return GymnasiumVectorEnv(config, group_seeds, group_size, envs, render, max_episode_steps)


def groups_of(envs: range, group_size: int) -> tuple[range, range]:
    """Return the groups that the environments `envs` of a run belong to, and the numbers of these
    environments counted from the first of these groups."""
    groups = range(envs.start // group_size, -(-envs.stop // group_size))
    first = groups.start * group_size
    return groups, range(envs.start - first, envs.stop - first)


def native_threads(num_threads: int) -> int:
    """Return the native threads per environment group in a process with `num_threads` threads.

    0 means that the process's only thread steps all groups itself.
    """
    return 0 if num_threads == 1 else 1


def _make_gymnasium(
    config: EnvConfig, num_envs: int, render: bool, max_episode_steps: int | None
) -> VectorEnv[Any, Any, Any]:
    """Return Gymnasium's own vector of `num_envs` environments. Raises UsageError if it cannot be made."""
    load_package(config.id)
    wrappers, kwargs, env_id = wrappers_of(config), make_arguments(config), config.id
    if env_id.startswith("gym:"):
        import shimmy  # noqa: F401 - registers the bridge

        kwargs["env_id"], env_id = env_id.removeprefix("gym:"), "GymV26Environment-v0"
    if render:
        kwargs["render_mode"] = "rgb_array"
    if max_episode_steps is not None:  # a second limit around the environment's own one, which stays in force
        wrappers.append(partial(TimeLimit, max_episode_steps=max_episode_steps))
    try:
        return gymnasium.make_vec(
            env_id,
            num_envs=num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
            wrappers=wrappers,
            **kwargs,
        )
    except UsageError:  # of a wrapper
        raise
    except Exception as error:  # the constructor's errors are about the id or its arguments
        reason = first_line(error) or type(error).__name__
        raise UsageError(
            f"cannot make environment {config.id!r} ({reason}); env must be a Procgen game "
            f"({', '.join(GAMES)}), a Gymnasium id such as CartPole-v1, or gym:<id>{similar_game(config.id)}"
        ) from error


class _Numbered(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the number of the environment to every error that it raises."""

    def __init__(self, env: gymnasium.Env[Any, Any], index: int) -> None:
        super().__init__(env)
        self.index = index

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            return self.env.step(action)
        except Interrupted:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(self.index, error) from error

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        try:
            return self.env.reset(**arguments)
        except Interrupted:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(self.index, error) from error


class GymnasiumVectorEnv(VectorEnv[NDArray[Any], NDArray[np.int64], NDArray[Any]]):
    """Gymnasium environments, stepped one after another; observations as `make_vector_env` describes them."""

    def __init__(
        self,
        config: EnvConfig,
        group_seeds: Sequence[np.random.SeedSequence],
        group_size: int,
        envs: range,
        render: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.id = config.id
        self.num_envs = len(envs)
        self.group_size, self._selected = group_size, slice(envs.start, envs.stop)
        self._seeds: list[int] | None = self._seeds_of(group_seeds)
        self._envs = _make_gymnasium(config, self.num_envs, render, max_episode_steps)
        if isinstance(self._envs, SyncVectorEnv):
            self._envs.envs = [_Numbered(env, index) for index, env in enumerate(self._envs.envs)]
        self.metadata = {**self._envs.metadata, **self.metadata}
        self.max_episode_steps = max_episode_steps
        spec = self._envs.spec
        own_limit = spec.kwargs.get("max_episode_steps", spec.max_episode_steps) if spec is not None else None
        if max_episode_steps is not None and own_limit is not None and own_limit <= max_episode_steps:
            self.max_episode_steps = None  # the environment's own limit comes first
        space, actions = self._envs.single_observation_space, self._envs.single_action_space
        try:
            require_discrete(actions, config.id)
            self._axes = observation_layout(space, config.id)
        except UsageError:
            self._envs.close()
            raise
        assert isinstance(space, gymnasium.spaces.Box) and isinstance(actions, gymnasium.spaces.Discrete)
        self._first_action = int(actions.start)
        self._dtype = np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)
        low, high = (self._arrange(np.asarray(bound)[None])[0] for bound in (space.low, space.high))
        self.single_observation_space = gymnasium.spaces.Box(low, high, dtype=self._dtype.type)
        self.single_action_space = gymnasium.spaces.Discrete(int(actions.n))
        self.observation_space = gymnasium.vector.utils.batch_space(
            self.single_observation_space, self.num_envs
        )
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)
        self.render_mode = self._envs.render_mode

    def _arrange(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return observations with the axes (N, H, W, C) or (N, D), contiguous, as uint8 or float32."""
        if self._axes == "HW":
            observations = observations[..., None]
        elif self._axes == "CHW":
            observations = np.moveaxis(observations, 1, -1)
        return np.ascontiguousarray(observations, self._dtype)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start new episodes and return their first observations (N, ...).

        Without `seed`, the first reset uses the seeds given to the constructor.
        """
        if seed is None and self._seeds is not None:
            seed = self._seeds
        self._seeds = None
        observations, infos = self._envs.reset(seed=seed, options=options)  # type: ignore[arg-type]
        return self._arrange(observations), infos

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = self._envs.step(actions + self._first_action)
        if truncated.any():
            final = infos["final_obs"]
            for i in np.flatnonzero(truncated):
                final[i] = self._arrange(np.asarray(final[i])[None])[0]
        return self._arrange(observations), rewards, terminated, truncated, infos

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        return self._envs.render()  # type: ignore[return-value]

    def restart(self, group_seeds: Sequence[np.random.SeedSequence]) -> NDArray[Any]:
        """Start new episodes with one seed per group; return the first observations."""
        return self.reset(seed=self._seeds_of(group_seeds))[0]

    def _seeds_of(self, group_seeds: Sequence[np.random.SeedSequence]) -> list[int]:
        """Return the seeds of the selected environments of these groups."""
        size = self.group_size
        return [seed for group in group_seeds for seed in environment_seeds(group, size)][self._selected]

    def get_state(self) -> list[bytes] | None:
        """Return the state of each environment as JSON; None if one holds more than plain data."""
        if not isinstance(self._envs, SyncVectorEnv):
            return None
        try:
            return [json.dumps(env_state.capture(env)).encode() for env in self._envs.envs]
        except env_state.OpaqueState:
            return None

    def set_state(self, states: Sequence[bytes]) -> None:
        """Restore a saved state in each environment."""
        assert isinstance(self._envs, SyncVectorEnv)
        self._envs.reset()  # makes the attributes that only a reset makes; restore overwrites them
        for env, state in zip(self._envs.envs, states, strict=True):
            env_state.restore(env, json.loads(state))
        self._seeds = None

    def close_extras(self, **kwargs: Any) -> None:
        self._envs.close()


def spaces_of(env: VectorEnv[Any, Any, Any]) -> Spaces:
    """Return the spaces of an environment, from which its network is built."""
    observation, action = env.single_observation_space, env.single_action_space
    assert isinstance(action, gymnasium.spaces.Discrete)
    return Spaces(tuple(observation.shape or ()), str(observation.dtype), int(action.n))
