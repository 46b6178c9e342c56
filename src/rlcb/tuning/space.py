"""The search space of each algorithm: which settings a trial chooses, from which range, on which scale.

A trial's parameters are what Optuna chooses, by the name of the dimension. Its settings are what a
configuration takes, by dotted key. The first trial always has the settings of the configuration it started
from, so the best trial is never worse than the default on the objective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from rlcb.config.config import Config, flat_settings

if TYPE_CHECKING:
    import optuna

Scale = Literal["linear", "log", "log of 1 - value"]
DIGITS = 3  # significant digits of a setting, so that the files that users get are readable


@dataclass(frozen=True)
class Interval:
    """A setting from `low` to `high`; on the scale `log of 1 - value` the distance to 1 is logarithmic."""

    key: str
    low: float
    high: float
    scale: Scale = "linear"

    @property
    def name(self) -> str:
        return f"1 - {self.key}" if self.scale == "log of 1 - value" else self.key

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of the parameter."""
        if self.scale != "log of 1 - value":
            return self.low, self.high
        return rounded(1 - self.high), rounded(1 - self.low)

    def parameter(self, config: Config) -> float:
        """Return the parameter of a configuration's setting, moved to the bound if it is beyond it."""
        value = float(flat_settings(config)[self.key])
        low, high = self.bounds()
        return min(high, max(low, rounded(1 - value) if self.scale == "log of 1 - value" else value))

    def suggest(self, trial: optuna.Trial) -> float:
        """Let the trial choose the parameter."""
        return trial.suggest_float(self.name, *self.bounds(), log=self.scale != "linear")

    def settings(self, parameter: Any, config: Config) -> dict[str, Any]:
        """Return the settings of a parameter."""
        value = rounded(parameter)
        return {self.key: rounded(1 - value, 6) if self.scale == "log of 1 - value" else value}

    def including(self, config: Config) -> Interval:
        """Return this interval, extended to the setting of `config` where that is beyond a bound."""
        value = float(flat_settings(config)[self.key])
        if (self.scale == "log" and value <= 0) or (self.scale == "log of 1 - value" and value >= 1):
            return self  # such a scale has no 0; the first trial has the setting nevertheless
        return replace(self, low=min(self.low, value), high=max(self.high, value))

    def text(self) -> str:
        """Describe the range for people."""
        return f"{self.low:g} to {self.high:g}" + ("" if self.scale == "linear" else f", {self.scale}")


@dataclass(frozen=True)
class Choice:
    """A setting with one of several values. `also` are settings that get the same value."""

    key: str
    values: tuple[Any, ...]
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.key

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.also)

    def parameter(self, config: Config) -> Any:
        """Return the value in a configuration."""
        return flat_settings(config)[self.key]

    def suggest(self, trial: optuna.Trial) -> Any:
        """Let the trial choose the value."""
        return trial.suggest_categorical(self.name, self.values)

    def settings(self, parameter: Any, config: Config) -> dict[str, Any]:
        """Return the settings of a value."""
        return dict.fromkeys(self.keys, parameter)

    def including(self, config: Config) -> Choice:
        """Return this choice, with the value of `config` among its values."""
        value = flat_settings(config)[self.key]
        if value in self.values:
            return self
        values = (*self.values, value)
        return replace(self, values=tuple(sorted(values)) if isinstance(value, (int, float)) else values)

    def text(self) -> str:
        """Describe the values for people."""
        return ", ".join("true" if v is True else "false" if v is False else str(v) for v in self.values)


@dataclass(frozen=True)
class Minibatches:
    """The number of minibatches in a rollout. It sets `training.batch_size`, which depends on the rollout."""

    values: tuple[int, ...] = (1, 2, 4, 8)
    key: str = "training.batch_size"
    name: str = "minibatches in a rollout"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def parameter(self, config: Config) -> int:
        """Return the number of minibatches of a configuration."""
        size = config.training.batch_size
        return 1 if size is None else -(-config.timesteps_per_update // size)

    def suggest(self, trial: optuna.Trial) -> int:
        """Let the trial choose the number."""
        number: int = trial.suggest_categorical(self.name, self.values)
        return number

    def settings(self, parameter: Any, config: Config) -> dict[str, Any]:
        """Return the minibatch size for `config`, which has the trial's other settings."""
        return {self.key: max(1, config.timesteps_per_update // parameter)}

    def including(self, config: Config) -> Minibatches:
        """Return this dimension, with the number of `config` among its values."""
        return replace(self, values=tuple(sorted({*self.values, self.parameter(config)})))

    def text(self) -> str:
        """Describe the values for people."""
        return ", ".join(map(str, self.values)) + " in a rollout"


Dimension = Interval | Choice | Minibatches

COMMON: tuple[Dimension, ...] = (
    Interval("training.learning_rate", 1e-4, 3e-3, "log"),
    Interval("training.ent_coef", 1e-4, 3e-2, "log"),
    Interval("training.gamma", 0.95, 0.9995, "log of 1 - value"),
    Interval("training.gae_lambda", 0.8, 1.0),
    Interval("training.vf_coef", 0.1, 1.0, "log"),
    Interval("training.max_grad_norm", 0.05, 5.0, "log"),
    Choice("training.reward_clip", (1.0, 3.0, 10.0)),
)
"""The settings that every algorithm has, with equal ranges for all."""

OPTIMIZER = Choice("training.optimizer", ("adam", "rmsprop"))
ON_POLICY: tuple[Dimension, ...] = (
    Choice("training.n_steps", (8, 16, 32, 64)),
    OPTIMIZER,
    Choice("training.normalize_advantages", (False, True)),
)
"""Further settings of A2C and A3C. Their batch is the rollout, so its length sets the batch size."""

FURTHER: dict[str, tuple[Dimension, ...]] = {
    "ppo": (
        Choice("training.n_steps", (32, 64, 128, 256)),
        Minibatches(),
        Choice("training.n_epochs", (1, 2, 3, 4, 6)),
        Interval("training.clip_range", 0.1, 0.4),
    ),
    "a2c": ON_POLICY,
    "a3c": ON_POLICY,
    "impala": (
        Choice("training.n_steps", (8, 16, 32, 64)),
        OPTIMIZER,
        Interval("training.optimizer_eps", 1e-8, 1e-2, "log"),
        Choice(
            "impala.vtrace_clip_rho_threshold", (1.0, 1.5, 2.0), also=("impala.vtrace_clip_pg_rho_threshold",)
        ),
        Choice("impala.vtrace_clip_c_threshold", (0.5, 0.75, 1.0)),
    ),
}
"""The settings that only some algorithms have, by algorithm. In IMPALA n_steps is the length of an unroll."""


def rounded(value: float, digits: int = DIGITS) -> float:
    """Return `value` with so many significant digits."""
    return float(f"{value:.{digits}g}")


def search_space(config: Config, fixed: Sequence[str]) -> tuple[Dimension, ...]:
    """Return the dimensions of a configuration's algorithm, without those that set a `fixed` key.

    Each range is extended to contain the configuration's own value.
    """
    dimensions = (*COMMON, *FURTHER.get(config.algorithm, ()))
    return tuple(each.including(config) for each in dimensions if not {*each.keys} & {*fixed})


def default_settings(space: Sequence[Dimension], config: Config) -> dict[str, Any]:
    """Return the configuration's own value of every setting in the space."""
    flat = flat_settings(config)
    return {key: flat[key] for dimension in space for key in dimension.keys}


def default_parameters(space: Sequence[Dimension], config: Config) -> dict[str, Any]:
    """Return the parameters that stand for the configuration's own settings."""
    return {dimension.name: dimension.parameter(config) for dimension in space}


def settings_of(space: Sequence[Dimension], parameters: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return the settings that a trial's parameters stand for, by dotted key."""
    n_steps = parameters.get("training.n_steps", config.training.n_steps)
    training = config.training.model_copy(update={"n_steps": n_steps})
    with_steps = config.model_copy(update={"training": training})
    settings: dict[str, Any] = {}
    for dimension in space:
        settings |= dimension.settings(parameters[dimension.name], with_steps)
    return settings
