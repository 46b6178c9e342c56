"""The collector: a policy acts in vectorised environments and fills a rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlcb.errors import EnvironmentFault, Interrupted, RunError, first_line
from rlcb.rl.models import ActorCritic
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.statistics import Episode
from rlcb.rl.timing import PhaseTimer
from rlcb.seeding import action_noise

Act = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Chooses actions, as ActorCritic.act: maps observations (N, ...), as the environment returns them, and noise
(N,) to actions (N,), their log-probabilities (N,) and values (N,)."""

LARGEST = float(np.finfo(np.float32).max)  # that a rollout stores


class Collector:
    """Steps one process's environments with a policy and fills rollouts.

    Keeps what the next rollout continues from: the last observations and the unfinished episodes' returns and
    lengths.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        model: ActorCritic,
        seed: int,
        first_env: int,
        timer: PhaseTimer,
        heartbeat: Callable[[], None],
        act: Act | None = None,
    ) -> None:
        """`first_env` is the number of the first environment in the run, for random streams and messages.

        `heartbeat` is called between environment steps; it may raise to abandon the rollout. `act` replaces
        `model.act`; the activation cache is used that way.
        """
        self.env = env
        self.model = model
        self.seed = seed
        self.first_env = first_env
        self.timer = timer
        self.heartbeat = heartbeat
        self.act = act or model.act
        self.observations: NDArray[Any] = self._first_observations()
        self.running_rewards = np.zeros(env.num_envs, np.float64)
        self.running_lengths = np.zeros(env.num_envs, np.int64)

    def _first_observations(self) -> NDArray[Any]:
        try:
            observations: NDArray[Any] = self.env.reset()[0]
        except EnvironmentFault as fault:
            env = self.first_env + fault.index
            raise RunError(f"environment {env} raised at its first reset: {fault}") from fault
        if observations.dtype != np.uint8:
            self._require_finite(observations, "observation", "its first reset")
        return observations

    def collect(self, rollout: RolloutBuffer, update: int, last_values: bool = True) -> list[Episode]:
        """Act for T steps, fill `rollout` (T, N), and return the episodes that ended, in order of time.

        Rewards are stored raw. Action noise depends on the seed, `update` (the number of the update) and the
        environment only. Without `last_values` the values behind the last row stay 0, except those of
        truncated episodes: for learners that compute them. Raises RunError if an environment raises or
        returns numbers that are not finite.
        """
        noise = torch.from_numpy(
            action_noise(self.seed, update, self.first_env, self.env.num_envs, rollout.n_steps)
        )
        with self.model.constant_weights():
            self._act(rollout, noise, update, last_values)
        return [each for t in range(rollout.n_steps) for each in self._count_episodes(rollout, t)]

    def _act(self, rollout: RolloutBuffer, noise: torch.Tensor, update: int, last_values: bool) -> None:
        """Fill `rollout` (T, N), with noise (T, N)."""
        final_observations: dict[int, NDArray[Any]] = {}
        for t in range(rollout.n_steps):
            self.heartbeat()
            rollout.observations[t] = self.observations
            with self.timer("inference"):
                actions, log_probs, values = self.act(torch.from_numpy(rollout.observations[t]), noise[t])
            rollout.actions[t] = actions.numpy()
            rollout.log_probs[t] = log_probs.numpy()
            rollout.values[t] = values.numpy()
            if t > 0:
                self._bootstrap(rollout, t - 1, rollout.values[t], final_observations)
            with self.timer("env"):
                final_observations = self._step(rollout, t, update)
        behind = np.zeros(self.env.num_envs, np.float32)
        if last_values:
            with self.timer("inference"), torch.inference_mode():
                behind = self.model(torch.from_numpy(self.observations))[1].numpy()
        self._bootstrap(rollout, rollout.n_steps - 1, behind, final_observations)

    def _step(self, rollout: RolloutBuffer, t: int, update: int) -> dict[int, NDArray[Any]]:
        """Step the environments with the actions of row t and write the outcome into that row.

        Returns the final observations of truncated episodes by environment.
        """
        where = f"step {t} of update {update}"
        try:
            observations, rewards, terminated, truncated, infos = self.env.step(rollout.actions[t])
        except EnvironmentFault as fault:
            env = self.first_env + fault.index
            raise RunError(f"environment {env} raised at {where}: {fault}") from fault
        except Interrupted:
            raise
        except (Exception, KeyboardInterrupt) as error:  # no Ctrl-C: StopSignal handles that
            last_env = self.first_env + self.env.num_envs - 1
            raise RunError(
                f"one of the environments {self.first_env} to {last_env} raised at {where}: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
        self._require_finite(rewards, "reward", where)
        if observations.dtype != np.uint8:
            self._require_finite(observations, "observation", where)
        rollout.rewards[t] = rewards
        rollout.terminated[t] = terminated
        rollout.truncated[t] = truncated & ~terminated  # an episode that ends both ways is a termination
        self.observations = observations
        truncated_envs = np.flatnonzero(rollout.truncated[t]) if "final_obs" in infos else ()
        return {int(i): infos["final_obs"][i] for i in truncated_envs}

    def _require_finite(self, values: NDArray[Any], what: str, where: str) -> None:
        if not np.abs(values).max() <= LARGEST:  # or NaN
            index = tuple(np.argwhere(~(np.abs(values) <= LARGEST))[0])
            env = self.first_env + index[0]
            raise RunError(f"environment {env} returned {what} {values[index]} at {where}")

    def _bootstrap(
        self, rollout: RolloutBuffer, t: int, next_values: NDArray[np.float32], final: dict[int, NDArray[Any]]
    ) -> None:
        """Write the values of the successors of row t into `bootstrap_values`.

        These are `next_values` (N,), and for truncated episodes the values of their `final` observations.
        """
        rollout.bootstrap_values[t] = next_values
        if final:
            with self.timer("inference"), torch.inference_mode():
                values = self.model(torch.from_numpy(np.stack(list(final.values()))))[1]
            rollout.bootstrap_values[t, list(final)] = values.numpy()

    def _count_episodes(self, rollout: RolloutBuffer, t: int) -> list[Episode]:
        """Add row t to the returns and lengths of running episodes; return the episodes that ended."""
        self.running_rewards += rollout.rewards[t]
        self.running_lengths += 1
        ended = np.flatnonzero(rollout.terminated[t] | rollout.truncated[t])
        episodes = [
            Episode(t, self.first_env + int(i), float(self.running_rewards[i]), int(self.running_lengths[i]))
            for i in ended
        ]
        self.running_rewards[ended] = 0.0
        self.running_lengths[ended] = 0
        return episodes

    def state(self) -> dict[str, Any]:
        """Return what the next rollout depends on; `env_states` is None if environments cannot be saved."""
        env_states = self.env.get_state() if hasattr(self.env, "get_state") else None
        return {
            "env_states": env_states
            and [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in env_states],
            "observations": torch.from_numpy(self.observations.copy()),
            "running_rewards": self.running_rewards.tolist(),
            "running_lengths": self.running_lengths.tolist(),
        }

    def load(self, state: dict[str, Any]) -> bool:
        """Continue from what `state` returned. Returns False, with nothing changed, if the environments were
        not saved."""
        if state["env_states"] is None:
            return False
        self.env.set_state([bytes(env_state.numpy()) for env_state in state["env_states"]])  # type: ignore[attr-defined]
        self.observations = state["observations"].numpy()
        self.running_rewards = np.asarray(state["running_rewards"], np.float64)
        self.running_lengths = np.asarray(state["running_lengths"], np.int64)
        return True


def join_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the states of several collectors, in the order of their environments, into one."""
    env_states: list[torch.Tensor] | None = []
    for state in states:
        saved = state["env_states"]
        env_states = None if env_states is None or saved is None else env_states + saved
    return {
        "env_states": env_states,
        "observations": torch.cat([state["observations"] for state in states]),
        "running_rewards": [reward for state in states for reward in state["running_rewards"]],
        "running_lengths": [length for state in states for length in state["running_lengths"]],
    }


def slice_state(state: dict[str, Any], envs: slice) -> dict[str, Any]:
    """Return the state of some of the environments of a state that `join_states` made."""
    return {name: None if value is None else value[envs] for name, value in state.items()}
