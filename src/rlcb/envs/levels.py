"""Choose the levels that an evaluation plays: the training levels, unseen test levels, or all levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rlcb.config.games import MAX_LEVEL, procgen_game
from rlcb.config.settings import EnvConfig
from rlcb.config.validation import describe_validation_error
from rlcb.errors import UsageError

CHOICES = ("train", "test", "both")


@dataclass(frozen=True)
class LevelSplit:
    """A named set of levels; `first` and `last` are None for environments without numbered levels."""

    name: str
    """train, test or full."""
    env: EnvConfig
    first: int | None
    last: int | None
    text: str
    """The levels in words."""

    def to_dict(self) -> dict[str, Any]:
        """Return the levels as a dictionary for JSON files."""
        count = None if self.first is None or self.last is None else self.last - self.first + 1
        return {"first": self.first, "last": self.last, "count": count, "description": self.text}


def describe_levels(env: EnvConfig) -> str:
    """Return the levels of a Procgen configuration in words, such as `levels 0 to 199`."""
    if env.distribution_mode == "exploration":
        return "the one exploration level"
    if env.num_levels == 0:
        return f"all levels from {env.start_level} on"
    return f"levels {env.start_level} to {env.start_level + (env.num_levels or 0) - 1}"


def env_config(data: dict[str, Any]) -> EnvConfig:
    """Return validated settings of an environment. Raises UsageError if they are invalid."""
    try:
        return EnvConfig.model_validate(data)
    except ValidationError as error:
        raise UsageError(describe_validation_error(error, EnvConfig)) from None


def evaluated_env(trained: EnvConfig | None, env_id: str | None) -> EnvConfig:
    """Return the environment to evaluate in: `env_id`, or else the environment of the training.

    From one Procgen game to another, the training's mode, level numbers and Procgen options are kept. A game
    without training levels gets all of its levels. From one Gymnasium environment to another, wrappers and
    preprocessing are kept. Raises UsageError if neither argument is given or the
    settings are invalid.
    """
    if trained is None and env_id is None:
        raise UsageError("without a checkpoint --env must name the environment")
    if trained is not None:
        if env_id is None:
            return trained
        other = env_config({"id": env_id})
        if other.id == trained.id:
            return trained
        if procgen_game(other.id) and procgen_game(trained.id):
            return env_config({**trained.model_dump(), "id": other.id})
        if not procgen_game(other.id) and not procgen_game(trained.id):
            return trained.of_id(other.id).model_copy(update={"num_levels": 0, "kwargs": {}})
    return env_config({"id": env_id, "num_levels": 0})


def splits_of(trained: EnvConfig | None, env: EnvConfig, requested: str | None) -> list[LevelSplit]:
    """Return the splits to evaluate: `requested` (train, test or both) or a default.

    The default is both if training had a limited set of levels, else the full distribution. `trained` is the
    environment of the training, None if there was none. Test levels start right after the training levels,
    so the two sets never overlap. Raises UsageError if a requested split does not exist.
    """
    if procgen_game(env.id) is None:
        if requested is not None:
            raise UsageError(
                f"--split {requested}: {env.id} has no numbered levels, only Procgen has; leave out --split"
            )
        return [LevelSplit("full", env, None, None, "the one distribution of this environment")]
    if trained is None or procgen_game(trained.id) is None:
        if requested is not None:
            who = "without a checkpoint there are" if trained is None else f"a checkpoint of {trained.id} has"
            raise UsageError(f"--split {requested}: {who} no training levels; leave out --split")
        return [_split("full", env)]
    reason = _why_no_test_levels(env)
    if reason is not None:
        if requested in ("test", "both"):
            raise UsageError(f"--split {requested}: there are no unseen levels, as {reason}")
        return [_split(requested or "full", env)]
    first = env.start_level + (env.num_levels or 0)
    # Procgen ignores start_level if num_levels is 0, so num_levels is set to the number of levels left.
    unseen = env_config({**env.model_dump(), "start_level": first, "num_levels": MAX_LEVEL - first})
    splits = [_split("train", env), _split("test", unseen)]
    return [split for split in splits if requested in (None, "both", split.name)]


def _why_no_test_levels(env: EnvConfig) -> str | None:
    """Return why no unseen levels are left after training, or None if there are some."""
    if env.distribution_mode == "exploration":
        return "distribution_mode exploration has one level"
    if env.procgen.use_sequential_levels:
        return "with use_sequential_levels an episode continues from its first level into any other"
    if env.num_levels == 0:
        return f"training had all levels from {env.start_level} on"
    if env.start_level + (env.num_levels or 0) >= MAX_LEVEL:
        return "the training levels include the last one"
    return None


def _split(name: str, env: EnvConfig) -> LevelSplit:
    """Return all levels of a Procgen configuration as a split."""
    if env.distribution_mode == "exploration":
        return LevelSplit(name, env, None, None, describe_levels(env))
    last = env.start_level + env.num_levels - 1 if env.num_levels else MAX_LEVEL - 1
    text = describe_levels(env)
    if env.procgen.use_sequential_levels:
        text = f"episodes that start in {text} and continue into others"
    return LevelSplit(name, env, env.start_level, last, text)
