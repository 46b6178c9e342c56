"""The configuration of a run: typed, validated, frozen.

A YAML file, then command-line values over it, become one `Config`. Nothing is ignored: an unknown key, a
value of the wrong type or an impossible combination is a `UsageError` that names the key, the value and the
rule.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from src.errors import UsageError
from src.procgen_games import GAMES_WITH_MODE, MAX_LEVEL, canonical_id, procgen_game

Algorithm = Literal["ppo"]
Mode = Literal["sequential"]
DistributionMode = Literal["easy", "hard", "extreme", "memory", "exploration"]

MAX_GROUP_SIZE = 8
DEFAULT_NUM_LEVELS = 200


def _whole(value: Any) -> Any:
    """Let `25e6` stand for 25000000 where a count is expected."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
NonNegative = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Widths = Annotated[tuple[Count, ...], Strict(False), Field(min_length=1)]


class Section(BaseModel):
    """Frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


class ProcgenOptions(Section):
    """Procgen's own options, passed on as they are."""

    center_agent: bool = True
    use_backgrounds: bool = True
    use_monochrome_assets: bool = False
    restrict_themes: bool = False
    use_generated_assets: bool = False
    paint_vel_info: bool = False
    use_sequential_levels: bool = False


class EnvConfig(Section):
    id: Annotated[str, AfterValidator(canonical_id)] = "procgen-coinrun-v0"
    """A Procgen game in any form of its name, a Gymnasium id, or gym:<id> for an old Gym environment."""
    num_envs: Count = 32
    """Environments in all, over every process."""
    group_size: Count | None = None
    """Environments that share one native batch and one seed; null: the largest divisor of the envs per
    process <= 8."""
    distribution_mode: DistributionMode = "easy"
    num_levels: NonNegative | None = None
    """Levels to train on, 0 for all of them; null: 200, except in exploration mode, which fixes its one
    level."""
    start_level: NonNegative = 0
    procgen: ProcgenOptions = ProcgenOptions()
    kwargs: dict[str, Any] = {}
    """Keyword arguments for gymnasium.make; Procgen takes its options from `procgen`."""

    @model_validator(mode="before")
    @classmethod
    def _default_levels(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        values = dict(data)
        if values.get("distribution_mode") == "exploration":
            if values.get("num_levels") is not None or values.get("start_level", 0) != 0:
                raise ValueError(
                    "distribution_mode exploration fixes its one level: leave out num_levels and start_level"
                )
        elif values.get("num_levels") is None:
            values["num_levels"] = DEFAULT_NUM_LEVELS
        return values

    @model_validator(mode="after")
    def _check(self) -> EnvConfig:
        if self.start_level + (self.num_levels or 0) > MAX_LEVEL:
            raise ValueError(f"start_level + num_levels must be at most {MAX_LEVEL}")
        if self.group_size is not None and self.num_envs % self.group_size:
            raise ValueError(f"group_size = {self.group_size} must divide num_envs = {self.num_envs}")
        game = procgen_game(self.id)
        with_mode = GAMES_WITH_MODE[self.distribution_mode]
        if game is not None and game not in with_mode:
            raise ValueError(
                f"{self.id} has no distribution_mode {self.distribution_mode!r}; "
                f"games that have it: {', '.join(with_mode)}"
            )
        if game is not None and self.kwargs:
            raise ValueError("kwargs are for Gymnasium environments; Procgen's options go under env.procgen")
        return self


class ModelConfig(Section):
    architecture: Literal["auto", "impala", "nature", "mlp"] = "auto"
    """auto: the IMPALA network for images, the MLP for vectors."""
    impala_channels: Widths = (16, 32, 32)
    hidden_size: Count = 256
    """Width of the dense layer behind the convolutions (the Nature network has 512 in its paper)."""
    mlp_sizes: Widths = (64, 64)


class TrainingConfig(Section):
    seed: NonNegative = 42
    total_timesteps: Count | None = 25_000_000
    """Budget of the fixed-timesteps scripts: environment steps over all environments, rounded up to whole
    rollouts."""
    duration_hours: PositiveFloat | None = None
    """Budget of the timed scripts: hours of wall clock."""
    n_steps: Count = 128
    batch_size: Count = 1024
    n_epochs: Count = 4
    learning_rate: PositiveFloat = 5e-4
    lr_schedule: Literal["constant", "linear"] = "constant"
    """linear: update k of K runs at learning_rate * (1 - k / K); in a timed run by the share of time used."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    optimizer_eps: PositiveFloat = 1e-5
    rmsprop_alpha: Fraction = 0.99
    max_grad_norm: PositiveFloat = 0.5
    gamma: Fraction = 0.999
    gae_lambda: Fraction = 0.95
    clip_range: PositiveFloat = 0.2
    clip_value_loss: bool = False
    vf_coef: Annotated[float, Field(ge=0)] = 0.5
    ent_coef: Annotated[float, Field(ge=0)] = 0.01
    normalize_advantages: bool = True
    target_kl: PositiveFloat | None = None
    """Ends an update after the epoch whose mean approximate KL exceeds it."""
    normalize_rewards: bool = True
    """Learn from rewards over the running standard deviation of the discounted return; reports stay raw."""
    reward_clip: PositiveFloat = 10.0


class HardwareConfig(Section):
    device: Literal["cpu"] = "cpu"
    num_threads: Count | None = None
    """Threads of one process; null: OMP_NUM_THREADS if set, else one per usable physical core."""
    microbatch_size: Count | None = None
    """Samples whose activations are alive at once; null: chosen for the machine. Does not change the
    mathematics."""
    tune_allocator: bool = True
    """Have glibc reuse freed pages instead of returning them to the system (Linux)."""


class LoggingConfig(Section):
    log_interval: Count = 1
    """Updates between two console lines when there is no terminal; metrics.jsonl has every update."""
    tensorboard: bool = True
    checkpoint_interval: Count = 100
    """Updates between two checkpoints ..."""
    checkpoint_minutes: PositiveFloat = 10.0
    """... or minutes, whichever comes first."""
    keep_checkpoints: Count = 3
    """Step checkpoints kept; the final and the best one are always kept."""
    memory_interval_seconds: PositiveFloat = 2.0
    checkpoint_dir: str | None = None
    log_dir: str | None = None


class Config(Section):
    """Everything that a run depends on. `Config.model_dump()` written as YAML reproduces it."""

    algorithm: Algorithm = "ppo"
    mode: Mode = "sequential"
    env: EnvConfig = Field(default_factory=lambda: EnvConfig.model_validate({}))
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    hardware: HardwareConfig = HardwareConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def timesteps_per_update(self) -> int:
        return self.training.n_steps * self.env.num_envs

    @property
    def num_processes(self) -> int:
        """Processes that step environments."""
        return 1

    @property
    def group_size(self) -> int:
        """Environments per native batch, resolved."""
        per_process = self.env.num_envs // self.num_processes
        return self.env.group_size or largest_divisor(per_process, MAX_GROUP_SIZE)

    @model_validator(mode="after")
    def _check(self) -> Config:
        training = self.training
        if training.batch_size > self.timesteps_per_update:
            raise ValueError(
                f"training.batch_size = {training.batch_size} must be at most the rollout, "
                f"n_steps x num_envs = {training.n_steps} x {self.env.num_envs} = {self.timesteps_per_update}"
            )
        return self


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


# Old files name these settings under `training`; each has one home.
ALIASES = {
    "training.num_envs": "env.num_envs",
    "training.device": "hardware.device",
    "training.num_threads": "hardware.num_threads",
    "hardware.num_envs": "env.num_envs",
}


class _Loader(yaml.SafeLoader):
    """YAML with YAML 1.2's floats (`1e-4` is a number) and without silently repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML text. Raises UsageError that names `source` and the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UsageError(
            f"{source}{where}: not valid YAML: {getattr(error, 'problem', None) or error}"
        ) from None


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a configuration file into plain sections, every setting in its one home.

    Raises UsageError if the file is missing, is not YAML, or gives a setting twice with different values.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read config {path}: not a text file") from None
    data = parse_yaml(text, str(path))
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise UsageError(
            f"{path}: expected sections (env, model, training, ...), found {type(data).__name__}"
        )
    _move_aliases(data, str(path))
    return data


def _move_aliases(data: dict[str, Any], source: str) -> None:
    for alias, home in ALIASES.items():
        section, key = alias.split(".")
        if not isinstance(data.get(section), dict) or key not in data[section]:
            continue
        value = data[section].pop(key)
        home_section, home_key = home.split(".")
        target = data.setdefault(home_section, {})
        if not isinstance(target, dict):
            continue  # validation names the malformed section
        if home_key in target and target[home_key] != value:
            raise UsageError(
                f"{source}: {alias} = {value!r} contradicts {home} = {target[home_key]!r}; keep one of them"
            )
        target[home_key] = value


def set_value(data: dict[str, Any], dotted_key: str, value: Any, source: str) -> None:
    """Set `section.key` (or `section.sub.key`) in plain sections."""
    *sections, key = ALIASES.get(dotted_key, dotted_key).split(".")
    if not sections or not all([*sections, key]):
        raise UsageError(f"{source}: expected section.key=value, for example training.gamma=0.99")
    for section in sections:
        if data.get(section) is None:
            data[section] = {}
        data = data[section]
        if not isinstance(data, dict):
            raise UsageError(f"{source}: {section} is not a section")
    data[key] = value


def build_config(data: Mapping[str, Any], source: str) -> Config:
    """Validate plain sections. Raises UsageError with one line that names every offending key, value and
    rule."""
    sections = {
        key: {} if value is None and key in Config.model_fields else value for key, value in data.items()
    }
    try:
        return Config.model_validate(sections)
    except ValidationError as error:
        raise UsageError(f"{source}: {describe_validation_error(error)}") from None


def describe_validation_error(error: ValidationError) -> str:
    """All problems of a pydantic error on one line: `section.key = value: rule; ...`."""
    problems = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        rule = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            problems.append(f"{key}: unknown key{_known_keys(item['loc'])}")
        elif item["type"] == "value_error":
            problems.append(f"{key}: {rule}" if key and key not in rule else rule)
        else:
            problems.append(f"{key} = {item['input']!r}: {rule[0].lower()}{rule[1:]}")
    return "; ".join(problems)


def _known_keys(location: Sequence[int | str]) -> str:
    section: Any = Config
    for part in location[:-1]:
        field = section.model_fields.get(str(part))
        section = field.annotation if field is not None else None
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return ""
    return f" (known: {', '.join(section.model_fields)})"


def flat_settings(config: Config) -> dict[str, Any]:
    """Every setting by its dotted key."""

    def walk(data: dict[str, Any], prefix: str) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for key, value in data.items():
            flat.update(
                walk(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
            )
        return flat

    return walk(config.model_dump(), "")


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML; `read_config_file` and `build_config` give the same object back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=110)
