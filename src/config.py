"""The configuration of a run: typed, validated, frozen.

Nothing is ignored: an unknown key, a value of the wrong type or an impossible combination is an error that
names the key, the value and the rule. How it is read and written is the matter of src/config_file.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from src.cpu_utils import usable_cores
from src.procgen_games import GAMES_WITH_MODE, MAX_LEVEL, canonical_id, procgen_game

Algorithm = Literal["ppo", "a2c", "a3c"]
Mode = Literal["sequential", "parallel"]
DistributionMode = Literal["easy", "hard", "extreme", "memory", "exploration"]

MAX_GROUP_SIZE = 8
DEFAULT_NUM_LEVELS = 200


def _whole(value: Any) -> Any:
    """Let `25e6` stand for 25000000 where a count is expected."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
NonNegative = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Coefficient = Annotated[float, Field(ge=0, allow_inf_nan=False)]
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
                    f"env.num_levels = {values.get('num_levels')!r}, env.start_level = "
                    f"{values.get('start_level', 0)!r}: distribution_mode exploration fixes its one level: "
                    "leave out both"
                )
        elif values.get("num_levels") is None:
            values["num_levels"] = DEFAULT_NUM_LEVELS
        return values

    @model_validator(mode="after")
    def _check(self) -> EnvConfig:
        if self.start_level + (self.num_levels or 1) > MAX_LEVEL:
            raise ValueError(
                f"env.start_level = {self.start_level}, env.num_levels = {self.num_levels}: "
                f"the last level must be below {MAX_LEVEL}"
            )
        if self.group_size is not None and self.num_envs % self.group_size:
            raise ValueError(f"env.group_size = {self.group_size} must divide env.num_envs = {self.num_envs}")
        game = procgen_game(self.id)
        with_mode = GAMES_WITH_MODE[self.distribution_mode]
        if game is not None and game not in with_mode:
            raise ValueError(
                f"env.distribution_mode = {self.distribution_mode!r}: {self.id} does not have it; "
                f"games that have it: {', '.join(with_mode)}"
            )
        if game is not None and self.kwargs:
            raise ValueError(
                f"env.kwargs = {self.kwargs!r}: they are for Gymnasium environments; "
                "Procgen's options go under env.procgen"
            )
        return self


class ModelConfig(Section):
    architecture: Literal["auto", "impala", "nature", "mlp"] = "auto"
    """auto: the IMPALA network for images, the MLP for vectors."""
    impala_channels: Widths = (16, 32, 32)
    hidden_size: Count = 256
    """Width of the dense layer behind the convolutions (the Nature network has 512 in its paper)."""
    mlp_sizes: Widths = (64, 64)


class TrainingConfig(Section):
    seed: Annotated[NonNegative, Field(le=2**63 - 1)] = 42
    total_timesteps: Count | None = 25_000_000
    """Budget of the fixed-timesteps scripts: environment steps over all environments, rounded up to whole
    rollouts."""
    duration_hours: PositiveFloat | None = None
    """Budget of the timed scripts: hours of wall clock."""
    n_steps: Count = 128
    batch_size: Count | None = 1024
    """Samples in a minibatch; null: the whole rollout. A2C and A3C learn from the whole rollout at once."""
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
    vf_coef: Coefficient = 0.5
    ent_coef: Coefficient = 0.01
    normalize_advantages: bool = True
    target_kl: PositiveFloat | None = None
    """Ends an update after the epoch whose mean approximate KL exceeds it."""
    normalize_rewards: bool = True
    """Learn from rewards over the running standard deviation of the discounted return; reports stay raw."""
    reward_clip: PositiveFloat = 10.0


class ParallelConfig(Section):
    num_workers: Count | None = None
    """Processes that step environments and learn; null: one per usable core. A sequential run has one."""
    timeout_seconds: PositiveFloat = 120.0
    """A worker that makes no progress for so long (an environment that hangs) ends the run."""
    check_every: Count = 100
    """Updates between two checks that all workers hold the same parameters."""
    buffer: Literal["auto", "shared", "mmap"] = "auto"
    """Where the rollout lies. auto: in memory, shared between workers; mmap: in a file, for rollouts larger
    than RAM."""
    buffer_dir: str | None = None
    """Folder of the file of an mmap buffer; null: the system's folder for temporary files."""


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
    snapshot_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Seconds between two states kept in memory, which an interrupted run is saved from; 0: every
    update's."""
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
    parallel: ParallelConfig = ParallelConfig()
    hardware: HardwareConfig = HardwareConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def timesteps_per_update(self) -> int:
        """Steps that one update learns from: of all environments, in A3C of those of one worker."""
        num_envs = self.envs_per_process if self.algorithm == "a3c" else self.env.num_envs
        return self.training.n_steps * num_envs

    @property
    def num_processes(self) -> int:
        """Processes that step environments and learn."""
        return self.parallel.num_workers or 1

    @property
    def envs_per_process(self) -> int:
        return self.env.num_envs // self.num_processes

    @property
    def group_size(self) -> int:
        """Environments per native batch, resolved."""
        if self.env.group_size is not None:
            return self.env.group_size
        return largest_divisor(self.envs_per_process, MAX_GROUP_SIZE) if procgen_game(self.env.id) else 1

    @model_validator(mode="before")
    @classmethod
    def _default_workers(cls, data: Any) -> Any:
        """Write the number of workers out, so that config.yaml says it."""
        parallel = data.get("parallel", {}) if isinstance(data, Mapping) else None
        if not isinstance(parallel, Mapping) or parallel.get("num_workers") is not None:
            return data
        workers = usable_cores() if data.get("mode") == "parallel" else 1
        return {**data, "parallel": {**parallel, "num_workers": workers}}

    @model_validator(mode="after")
    def _check(self) -> Config:
        self._check_algorithm()
        training, workers, num_envs = self.training, self.num_processes, self.env.num_envs
        if self.mode == "sequential" and workers != 1:
            raise ValueError(f"parallel.num_workers = {workers}: a sequential run has one process")
        if num_envs % workers:
            raise ValueError(
                f"env.num_envs = {num_envs} must be a multiple of parallel.num_workers = {workers}"
            )
        if self.env.group_size is not None and self.envs_per_process % self.env.group_size:
            raise ValueError(
                f"env.group_size = {self.env.group_size} must divide the environments of a process, "
                f"{num_envs} / {workers} = {self.envs_per_process}"
            )
        if training.batch_size is not None and training.batch_size > self.timesteps_per_update:
            raise ValueError(
                f"training.batch_size = {training.batch_size} must be at most the rollout, "
                f"n_steps x num_envs = {training.n_steps} x {num_envs} = {self.timesteps_per_update}"
            )
        return self

    def _check_algorithm(self) -> None:
        if self.algorithm == "ppo":
            return
        name, training = self.algorithm.upper(), self.training
        if training.n_epochs != 1:
            raise ValueError(
                f"training.n_epochs = {training.n_epochs}: {name} uses a rollout once, so it must be 1"
            )
        if training.batch_size not in (None, self.timesteps_per_update):
            raise ValueError(
                f"training.batch_size = {training.batch_size}: {name} learns from the whole rollout at once; "
                f"leave it null or {self.timesteps_per_update}"
            )
        for key in PPO_SETTINGS:
            value = getattr(training, key)
            if value != TrainingConfig.model_fields[key].default:
                raise ValueError(f"training.{key} = {value}: only PPO has this setting, not {name}")
        if self.algorithm == "a3c" and self.mode == "sequential":
            raise ValueError("A3C is asynchronous: one sequential A3C worker is A2C, so use A2C")


# Settings that mean something to PPO alone.
PPO_SETTINGS = ("clip_range", "clip_value_loss", "target_kl")


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


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
