"""Play episodes to measure a policy: a fixed number in each environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlcb.envs.procgen import ProcgenVectorEnv
from rlcb.envs.vector_env import GymnasiumVectorEnv
from rlcb.errors import RunError
from rlcb.rl.models import ActorCritic

Policy = Callable[[NDArray[Any], NDArray[np.float64]], NDArray[np.int64]]
"""Maps observations (n, ...) and noise (n,), uniform in [0, 1), to actions (n,) int64."""


class PlayedEpisode(NamedTuple):
    """A finished episode.

    Raw return, length in steps, whether the step cap ended it, and its level (None outside of Procgen).
    """

    reward: float
    length: int
    capped: bool
    level: int | None


def model_policy(model: ActorCritic, deterministic: bool) -> Policy:
    """Return a policy that takes the model's most probable action or, unless `deterministic`, samples one."""

    def act(observations: NDArray[Any], noise: NDArray[np.float64]) -> NDArray[np.int64]:
        if deterministic:
            with torch.inference_mode():
                actions = model(torch.from_numpy(observations))[0].argmax(-1)
        else:
            actions, _, _ = model.act(torch.from_numpy(observations), torch.from_numpy(noise))
        return np.asarray(actions.numpy(), np.int64)

    return act


def random_policy(num_actions: int) -> Policy:
    """Return a policy that takes every action with the same probability."""
    return lambda observations, noise: (noise * num_actions).astype(np.int64)


def episode_quotas(episodes: int, num_envs: int) -> NDArray[np.int64]:
    """Divide `episodes` over the environments as evenly as possible; the first ones get one more.

    Returns (num_envs,) int64.
    """
    quotas = np.full(num_envs, episodes // num_envs, np.int64)
    quotas[: episodes % num_envs] += 1
    return quotas


def play(
    env: ProcgenVectorEnv | GymnasiumVectorEnv,
    policy: Policy,
    quotas: NDArray[np.int64],
    noise: Sequence[np.random.Generator] | None,
    on_episode: Callable[[], None] = lambda: None,
    before_step: Callable[[], None] = lambda: None,
) -> list[PlayedEpisode]:
    """Play until every environment has finished its quota; return exactly these episodes, by environment.

    `quotas` (num_envs,) are fixed in advance, because the first N episodes to end would favour short ones.
    `noise` has one generator per environment, so its actions do not depend on the other environments. With
    None the policy must be deterministic; then it is called again only for observations that changed, which
    skips two calls of three for an untrained policy in coinrun. Raises RunError if an environment raises or
    returns a value that is not finite.
    """
    observations: NDArray[Any] = env.reset()[0]
    count = _EpisodeCount(env, quotas)
    asked = count.open
    actions = np.zeros(env.num_envs, np.int64)
    step = 0
    while len(count.open):
        before_step()
        if len(asked):
            draws = np.zeros(len(asked)) if noise is None else np.array([noise[i].random() for i in asked])
            actions[asked] = policy(observations[asked], draws)
        seen = observations
        observations, rewards, terminated, truncated = _step(env, actions, step)
        for _ in range(count.add(rewards, terminated, truncated)):
            on_episode()
        asked, step = count.open, step + 1
        if noise is None:
            changed = (observations != seen).reshape(env.num_envs, -1).any(1)
            asked = asked[changed[asked]]
    return count.episodes()


class _EpisodeCount:
    """Tracks returns and lengths of the running episodes and collects the finished ones that count.

    `play` uses it.
    """

    def __init__(self, env: ProcgenVectorEnv | GymnasiumVectorEnv, quotas: NDArray[np.int64]) -> None:
        """`env` must just have been reset."""
        self.env = env
        self.open = np.flatnonzero(quotas)
        """Indices of the environments that have not finished their quota."""
        self._remaining = quotas.copy()
        self._finished: list[list[PlayedEpisode]] = [[] for _ in quotas]
        self._rewards = np.zeros(len(quotas))
        self._lengths = np.zeros(len(quotas), np.int64)
        self._levels = self._current_levels()

    def _current_levels(self) -> NDArray[np.int64] | None:
        return self.env.level_seeds() if isinstance(self.env, ProcgenVectorEnv) else None

    def add(self, rewards: NDArray[Any], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> int:
        """Record one step of all environments and return how many episodes that count it finished."""
        self._rewards += rewards
        self._lengths += 1
        ended = np.flatnonzero(terminated | truncated)
        if not len(ended):
            return 0
        counted = ended[self._remaining[ended] > 0]
        for i in counted:
            self._finished[i].append(self._episode(i, bool(truncated[i] and not terminated[i])))
        self._remaining[counted] -= 1
        self.open = np.flatnonzero(self._remaining)
        self._rewards[ended] = 0.0
        self._lengths[ended] = 0
        self._levels = self._current_levels()
        return len(counted)

    def _episode(self, i: int, truncated: bool) -> PlayedEpisode:
        cap, length = self.env.max_episode_steps, int(self._lengths[i])
        capped = truncated and cap is not None and length >= cap
        return PlayedEpisode(
            float(self._rewards[i]), length, capped, None if self._levels is None else int(self._levels[i])
        )

    def episodes(self) -> list[PlayedEpisode]:
        """The finished episodes that count, by environment."""
        return [episode for each in self._finished for episode in each]


def _step(
    env: ProcgenVectorEnv | GymnasiumVectorEnv, actions: NDArray[np.int64], step: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]:
    """Step all environments. Raises RunError for exceptions and for values that are not finite."""
    try:
        observations, rewards, terminated, truncated, _ = env.step(actions)
    except Exception as error:
        raise RunError(
            f"an environment raised at step {step} of the evaluation: {type(error).__name__}: {error}"
        ) from error
    for what, values in (("reward", rewards), ("observation", observations)):
        if values.dtype != np.uint8 and not np.isfinite(values).all():
            i = int(np.argwhere(~np.isfinite(values))[0][0])
            raise RunError(f"environment {i} returned {what} {values[i]} at step {step} of the evaluation")
    return observations, rewards, terminated, truncated
