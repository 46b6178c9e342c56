"""The settings of a tuning: algorithms, environments, and an effort and protocol equal for all algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from rlcb.config.algorithms import ALGORITHMS, WHY_NOT, AlgorithmName
from rlcb.config.budget import require_one_budget, with_default_budget
from rlcb.config.config import Config
from rlcb.config.games import canonical_id, check_environment
from rlcb.config.sourced import SourcedSettings, place_of, source_in, sources_of
from rlcb.config.validation import describe_validation_error
from rlcb.config.values import Count, Hours, NonNegative, Once, Section
from rlcb.config.yaml_file import (
    DECIDED_BY_FLAGS,
    build_config,
    read_config_files,
    require_run,
    set_value,
    split_key,
)
from rlcb.errors import UsageError
from rlcb.paths import default_config_path
from rlcb.suggestion import did_you_mean

RESERVED = {**DECIDED_BY_FLAGS, "mode": "--mode"}


class Tuning(Section):
    """The settings of a tuning. In tuning.yaml each key has the name of its flag."""

    algorithms: Annotated[list[AlgorithmName], Field(min_length=1), Once]
    mode: Literal["sequential", "parallel"] = "parallel"
    envs: Annotated[list[Annotated[str, AfterValidator(canonical_id)]], Field(min_length=1), Once] = Field(
        default=["procgen-coinrun-v0"]
    )
    seeds: Annotated[list[Annotated[NonNegative, Field(le=2**63 - 1)]], Field(min_length=1), Once] = Field(
        default=[1]
    )
    """Training seeds. A trial makes one run for each environment and seed."""
    trials: Count = 20
    """Trials of each algorithm, the one with the default settings included."""
    duration: Hours | None = None
    """Wall-clock hours of each run of a trial. Without a duration and without total_timesteps: one hour."""
    total_timesteps: Count | None = None
    """Timesteps of each run of a trial, instead of a duration."""
    num_envs: Count | None = None
    sampler: Literal["tpe", "random"] = "tpe"
    pruner: Literal["median", "halving", "none"] = "median"
    search_seed: NonNegative = 0
    """Seed of the sampler; trial number n of every algorithm has the same random numbers."""
    config: dict[str, str] = Field(default={})
    """Configuration files or overlays, by algorithm."""
    set: dict[str, Any] = Field(default={})
    """Fixed settings by `section.key`; a prefix `<algorithm>:` limits one to this algorithm. A fixed setting
    is not searched."""

    @model_validator(mode="before")
    @classmethod
    def _default_budget(cls, data: Any) -> Any:
        return with_default_budget(data)

    @model_validator(mode="after")
    def _check(self) -> Tuning:
        require_one_budget(self.duration, self.total_timesteps)
        for algorithm in self.algorithms:
            if self.mode not in ALGORITHMS[algorithm].modes:
                reason = WHY_NOT[algorithm, self.mode]
                raise ValueError(f"algorithms: {algorithm} has no mode {self.mode}: {reason}")
        return self

    @property
    def timed(self) -> bool:
        return self.duration is not None

    @property
    def budget(self) -> float:
        """The budget of a run: seconds, or timesteps."""
        return self.duration * 3600 if self.duration is not None else float(self.total_timesteps or 0)

    @property
    def runs_per_trial(self) -> list[tuple[str, int]]:
        """The (environment, seed) of each run of a trial, in order."""
        return [(env, seed) for seed in self.seeds for env in self.envs]

    def fixed(self, algorithm: str) -> dict[str, Any]:
        """Return the settings that `set` and `num_envs` fix for an algorithm, by dotted key."""
        fixed: dict[str, Any] = {} if self.num_envs is None else {"env.num_envs": self.num_envs}
        for scoped in (False, True):  # a setting for one algorithm overrides one for all
            for key, value in self.set.items():
                scope, name = split_key(key)
                if bool(scope) == scoped and scope in ("", algorithm):
                    fixed[name] = value
        return fixed


def build_tuning(data: Mapping[str, Any], source: str) -> Tuning:
    """Validate the settings of a tuning. Raises UsageError: one line with the key, the value and the rule."""
    try:
        tuning = Tuning.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError(describe_validation_error(error, Tuning, source_in(data, source))) from None
    sources = sources_of(data)
    for key in tuning.set:
        scope, name = split_key(key)
        place = place_of(sources, f"set.{key}")
        if name in RESERVED:
            raise UsageError(f"{place}: the tuning sets {name} for each run; use {RESERVED[name]}")
        if scope and scope not in tuning.algorithms:
            raise UsageError(
                f"{place}: {scope!r} is not among the algorithms of this tuning"
                f"{did_you_mean(scope, tuning.algorithms)}"
            )
    for scope, path in tuning.config.items():
        if scope not in tuning.algorithms:
            raise UsageError(
                f"{place_of(sources, f'config.{scope}')}={path}: expected ALGORITHM=FILE with an algorithm "
                "of this tuning"
            )
    for env in tuning.envs:
        check_environment(env, place_of(sources, "envs"))
    return tuning


def base_settings(tuning: Tuning, algorithm: str) -> SourcedSettings:
    """Return the plain settings that all runs of an algorithm start from: its file, then the fixed settings.

    Raises UsageError.
    """
    named = tuning.config.get(algorithm)
    path = Path(named) if named else default_config_path(algorithm, tuning.mode)
    data = read_config_files([path], algorithm, tuning.mode)
    require_run(data, algorithm, tuning.mode, "the tuning needs it for")
    set_value(data, "logging.keep_checkpoints", 1, "tuning")  # there are many runs
    for key, value in tuning.fixed(algorithm).items():
        set_value(data, key, value, "--num-envs" if key == "env.num_envs" else f"--set {key}")
    return data


def run_config(
    tuning: Tuning, base: SourcedSettings, settings: Mapping[str, Any], env: str, seed: int
) -> Config:
    """Return the configuration of a run: the base of its algorithm with a trial's settings.

    Raises UsageError if it is invalid.
    """
    data = base.copy()
    values = {
        **settings,
        "env.id": env,
        "training.seed": seed,
        "training.duration_hours": tuning.duration,
        "training.total_timesteps": tuning.total_timesteps,
    }
    for key, value in values.items():
        set_value(data, key, value, "the trial")
    try:
        return build_config(data)
    except UsageError as error:
        raise UsageError(f"{base['algorithm']} {tuning.mode}: {error}") from None


def changed_settings(before: Tuning, now: Tuning) -> list[str]:
    """Return the differences that make `now` another tuning; more trials only extend it."""
    old, new = before.model_dump(), now.model_dump()
    return [
        f"{key} = {old[key]!r} there, {new[key]!r} now"
        for key in old
        if old[key] != new[key] and not (key == "trials" and new[key] > old[key])
    ]
