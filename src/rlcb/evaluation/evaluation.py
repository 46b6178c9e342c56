"""Evaluate a policy: load it, make its environments and levels, play episodes, summarise the returns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from rlcb import cpu, seeding
from rlcb.config.config import MAX_GROUP_SIZE, Config, largest_divisor
from rlcb.config.games import procgen_game
from rlcb.config.settings import KernelsSetting
from rlcb.config.yaml_file import build_config
from rlcb.envs.levels import LevelSplit, evaluated_env, splits_of
from rlcb.envs.procgen import ProcgenVectorEnv
from rlcb.envs.spaces import Spaces
from rlcb.envs.vector_env import GymnasiumVectorEnv, make_vector_env, native_threads, spaces_of
from rlcb.errors import UsageError
from rlcb.evaluation.episodes import PlayedEpisode, Policy, episode_quotas, model_policy, play, random_policy
from rlcb.rl.models import ActorCritic, make_model
from rlcb.software import describe_software
from rlcb.training.checkpoint import load_checkpoint

SCHEMA_VERSION = 1
CONFIDENCE = 0.95
# Number of each level split's random streams; `watch` is for episodes that are shown but not measured.
STREAMS = {"train": 0, "test": 1, "full": 2, "watch": 3}


@dataclass(frozen=True)
class Plan:
    """What to evaluate. Two equal plans play the same episodes, whatever their `num_threads`."""

    checkpoint: Path | None
    episodes: int = 100
    """Episodes on each level split."""
    split: str | None = None
    """train, test or both; None: both if training had a limited set of levels, else the full distribution."""
    seed: int = 0
    deterministic: bool = False
    """Take the most probable action instead of sampling."""
    random: bool = False
    """Take uniformly random actions; a checkpoint then only names environment and levels."""
    algorithm: str | None = None
    """The algorithm that the checkpoint must be from; None: any."""
    env_id: str | None = None
    """None: the environment of the checkpoint."""
    num_envs: int | None = None
    max_episode_steps: int = 10_000
    num_threads: int = 1

    def __post_init__(self) -> None:
        """Raises UsageError for values out of range and for contradicting fields."""
        for flag in ("episodes", "num_envs", "max_episode_steps", "num_threads"):
            value = getattr(self, flag)
            if value is not None and value < 1:
                name = "num-episodes" if flag == "episodes" else flag.replace("_", "-")
                raise UsageError(f"--{name} {value}: must be at least 1")
        if self.seed < 0:
            raise UsageError(f"--seed {self.seed}: must not be negative")
        if self.random and self.deterministic:
            raise UsageError("--deterministic contradicts --random")
        if self.checkpoint is None and not self.random:
            raise UsageError("--checkpoint is missing (or --random for the random policy)")
        if self.random and self.algorithm is not None:
            raise UsageError("--algorithm contradicts --random: no algorithm trained the random policy")


class Evaluation:
    """A plan with its checkpoint loaded, its policy made and its level splits chosen.

    `run` plays and summarises the episodes; the video recorder uses `make_env` and `play`.
    """

    def __init__(self, plan: Plan) -> None:
        """Raises UsageError if the checkpoint, environment or split is missing, broken, or does not fit the
        others."""
        self.plan = plan
        self.checkpoint = load_checkpoint(plan.checkpoint) if plan.checkpoint is not None else None
        self.config: Config | None = None
        if self.checkpoint is not None:
            self.config = build_config(self.checkpoint["config"], str(plan.checkpoint))
            if plan.algorithm not in (None, self.checkpoint["algorithm"]):
                raise UsageError(
                    f"{plan.checkpoint} is a checkpoint of {self.checkpoint['algorithm']}, "
                    f"not of {plan.algorithm}"
                )
        trained = self.config.env if self.config is not None else None
        self.env = evaluated_env(trained, plan.env_id)
        self.splits = splits_of(trained, self.env, plan.split)
        self.num_envs = min(plan.num_envs or 32, plan.episodes)
        probe = self.make_env(self.splits[0], 1, STREAMS["watch"])
        self.spaces = spaces_of(probe)
        probe.close()
        self.policy = self._make_policy()

    @property
    def other_env(self) -> bool:
        """Whether the environment differs from the one that the checkpoint was trained in."""
        return self.config is not None and self.env.id != self.config.env.id

    def _make_policy(self) -> Policy:
        if self.plan.random:
            return random_policy(self.spaces.num_actions)
        assert self.checkpoint is not None and self.config is not None
        saved = Spaces.from_dict(self.checkpoint["spaces"])
        if saved != self.spaces:
            raise UsageError(
                f"{self.plan.checkpoint} was trained on {self.config.env.id} with {describe_spaces(saved)}; "
                f"{self.env.id} has {describe_spaces(self.spaces)}"
            )
        assert self.plan.checkpoint is not None
        model = load_model(self.plan.checkpoint, self.checkpoint, self.config)
        return model_policy(model, self.plan.deterministic)

    def play(
        self,
        env: ProcgenVectorEnv | GymnasiumVectorEnv,
        episodes: int,
        stream: int,
        on_episode: Callable[[], None] = lambda: None,
        before_step: Callable[[], None] = lambda: None,
    ) -> list[PlayedEpisode]:
        """Play `episodes` episodes in `env` with the action noise of a stream, then close `env`.

        `on_episode` is called after each episode that counts, `before_step` before each environment step.
        """
        noise = [seeding.evaluation_actions(self.plan.seed, stream, i) for i in range(env.num_envs)]
        quotas = episode_quotas(episodes, env.num_envs)
        try:
            return play(
                env, self.policy, quotas, None if self.plan.deterministic else noise, on_episode, before_step
            )
        finally:
            env.close()

    def make_env(
        self, split: LevelSplit, num_envs: int, stream: int, render: bool = False
    ) -> ProcgenVectorEnv | GymnasiumVectorEnv:
        """Make `num_envs` environments on a split's levels, seeded from a stream."""
        group_size = largest_divisor(num_envs, MAX_GROUP_SIZE)
        groups = range(num_envs // group_size)
        return make_vector_env(
            split.env,
            [seeding.evaluation_seed(self.plan.seed, group, stream) for group in groups],
            group_size,
            native_threads(self.plan.num_threads),
            render,
            self.plan.max_episode_steps,
        )

    def run(self, on_episode: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Play all level splits and return the content of the evaluation's JSON file.

        `on_episode` is called after each episode that counts. Raises RunError if an environment fails.
        """
        started, clock = datetime.now(timezone.utc).isoformat(timespec="seconds"), time.perf_counter()
        results: dict[str, dict[str, Any]] = {}
        for split in self.splits:
            stream = STREAMS[split.name]
            env = self.make_env(split, self.num_envs, stream)
            episodes = self.play(env, self.plan.episodes, stream, on_episode)
            results[split.name] = {"levels": split.to_dict(), **summarise(episodes)}
        return {
            "schema_version": SCHEMA_VERSION,
            "start_time": started,
            "duration_seconds": round(time.perf_counter() - clock, 3),
            **self._subject(),
            "env": self.env.id,
            "distribution_mode": self.env.distribution_mode if procgen_game(self.env.id) else None,
            "observation_shape": list(self.spaces.network_shape),
            "num_actions": self.spaces.num_actions,
            "seed": self.plan.seed,
            "deterministic": self.plan.deterministic,
            "episodes_per_split": self.plan.episodes,
            "num_envs": self.num_envs,
            "max_episode_steps": self.plan.max_episode_steps,
            "splits": results,
            "generalisation_gap": generalisation_gap(results),
            "hardware": {**cpu.describe_machine(), "threads": self.plan.num_threads},
            "software": describe_software(),
        }

    def _subject(self) -> dict[str, Any]:
        """Return the facts about the policy. Those about training are None for the random policy."""
        path = str(self.plan.checkpoint) if self.plan.checkpoint is not None else None
        facts: dict[str, Any] = {"checkpoint": path, "algorithm": "random"}
        if self.checkpoint is not None and self.config is not None:
            facts["trained_env"] = self.config.env.id
            if not self.plan.random:
                facts |= {
                    "algorithm": self.checkpoint["algorithm"],
                    "training_mode": self.checkpoint["mode"],
                    "training_seed": self.config.training.seed,
                    "timesteps": self.checkpoint["counters"]["timesteps"],
                    "updates": self.checkpoint["counters"]["updates"],
                    "training_hours": round(self.checkpoint["elapsed_seconds"] / 3600, 6),
                }
        keys = ("training_mode", "training_seed", "trained_env", "timesteps", "updates", "training_hours")
        return {**dict.fromkeys(keys), **facts}


def load_model(path: Path, checkpoint: Mapping[str, Any], config: Config) -> ActorCritic:
    """Return the network of a checkpoint that was read from `path`, in evaluation mode.

    Raises UsageError, which names `path`, if the weights do not fit the network or are not finite.
    """
    kernels: KernelsSetting = (
        "torch" if config.hardware.kernels == "torch" else "auto"
    )  # this may be another machine
    model = make_model(config.model, Spaces.from_dict(checkpoint["spaces"]), 0, kernels)
    try:
        model.load_state_dict(checkpoint["learner"]["model"])
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path}: weights do not fit the network ({reason})") from error
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        raise UsageError(f"{path} holds weights that are not finite")
    return model.eval()


def evaluate(
    checkpoint: Path | None,
    episodes: int = 100,
    split: str | None = None,
    seed: int = 0,
    deterministic: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate a checkpoint or the random policy; return the content of the evaluation's JSON file.

    Writes no file. `options` are further fields of Plan. Raises UsageError if the arguments do not fit
    together, RunError if an environment fails.
    """
    plan = Plan(checkpoint, episodes, split, seed, deterministic, **options)
    cpu.set_torch_threads(plan.num_threads)
    return Evaluation(plan).run()


def describe_spaces(spaces: Spaces) -> str:
    """Observation shape, dtype and number of actions in words."""
    return (
        f"observations {spaces.network_shape} of {spaces.observation_dtype} and {spaces.num_actions} actions"
    )


def summarise(episodes: Sequence[PlayedEpisode]) -> dict[str, Any]:
    """Return the statistics of at least one episode, and the lists of all returns and lengths.

    Standard deviations divide by n - 1 and are None for a single episode. `ci95_mean_reward` is the 95 %
    confidence interval of the mean return by Student's t.
    """
    rewards = np.array([episode.reward for episode in episodes], np.float64)
    lengths = np.array([episode.length for episode in episodes], np.float64)
    mean, std, interval = float(rewards.mean()), _sample_std(rewards), None
    if std is not None:
        half = float(stdtrit(len(rewards) - 1, (1 + CONFIDENCE) / 2)) * std / math.sqrt(len(rewards))
        interval = [mean - half, mean + half]
    return {
        "episodes": len(episodes),
        "mean_reward": mean,
        "std_reward": std,
        "min_reward": float(rewards.min()),
        "max_reward": float(rewards.max()),
        "ci95_mean_reward": interval,
        "mean_length": float(lengths.mean()),
        "std_length": _sample_std(lengths),
        "capped_episodes": sum(episode.capped for episode in episodes),
        "rewards": [episode.reward for episode in episodes],
        "lengths": [episode.length for episode in episodes],
        "capped": [episode.capped for episode in episodes],
        "level_of_episode": [episode.level for episode in episodes],
    }


def _sample_std(values: np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None


def generalisation_gap(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None] | None:
    """Return the mean return on training levels minus that on test levels, and its standard error.

    None unless both splits were evaluated.
    """
    if not {"train", "test"} <= set(results):
        return None
    train, test = results["train"], results["test"]
    error = None
    if train["std_reward"] is not None and test["std_reward"] is not None:
        error = math.sqrt(sum(each["std_reward"] ** 2 / each["episodes"] for each in (train, test)))
    return {"mean": train["mean_reward"] - test["mean_reward"], "standard_error": error}
