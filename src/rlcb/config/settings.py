"""The sections of a configuration: what each setting is, its type, its limits and its default.

What holds between sections is checked in config/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from rlcb.config.games import GAMES_WITH_MODE, MAX_LEVEL, canonical_id, procgen_game

DistributionMode = Literal["easy", "hard", "extreme", "memory", "exploration"]

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
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: the layers before the two heads multiply numbers with 8 bits of mantissa and add them up in
    float32; weights, gradients and optimizer stay float32. Faster only where the processor has instructions
    for it (Zen 4, Sapphire Rapids and later)."""


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


class ImpalaConfig(Section):
    """Settings of IMPALA alone; actors and learners exist in its parallel and distributed modes, where each
    node has as many of them."""

    vtrace_clip_rho_threshold: PositiveFloat = 1.0
    """rho-bar: upper bound of the importance ratio in the value targets."""
    vtrace_clip_pg_rho_threshold: PositiveFloat = 1.0
    """Upper bound of the importance ratio in the policy gradient."""
    vtrace_clip_c_threshold: PositiveFloat = 1.0
    """c-bar: upper bound of the trace coefficients, which training.gae_lambda multiplies."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """mean: over samples, as in every algorithm here; sum: over samples, as in the paper's code."""
    num_actors: Count | None = None
    """Processes of a node that step environments; null: chosen by a calibration of the (first) machine."""
    num_learners: Count | None = None
    """Processes of a node that learn, each from its share of every batch; null: chosen by the
    calibration."""
    max_policy_lag: NonNegative = 2
    """Updates by which the parameters that acted may be older than those that learn; 0: actors and learners
    take turns. There are max_policy_lag + 1 batches of unrolls in memory."""
    max_actor_restarts: NonNegative = 3
    """Actors of a node that may die and be replaced before the run fails, restarts of the run included."""
    actor_nice: Annotated[NonNegative, Field(le=19)] = 10
    """By how much actors yield to learners where they share cores."""
    check_unwritten: bool = False
    """Fill unrolls with absurd values before they are written, and fail if one is learned from."""


class ParallelConfig(Section):
    num_workers: Count | None = None
    """Processes that step environments and learn; null: the largest number that divides the environments, one
    per usable core at the most. A sequential run has one."""
    timeout_seconds: PositiveFloat = 120.0
    """A worker that makes no progress for so long (an environment that hangs) ends the run. A time for
    which all of it is suspended does not count."""
    check_every: Count = 100
    """Updates between two checks that all workers hold the same parameters; not for A3C, whose
    workers never do."""
    buffer: Literal["auto", "shared", "mmap"] = "auto"
    """Where the rollout lies. auto: in memory, shared between workers; mmap: in a file, for rollouts larger
    than RAM. A3C has one for each worker."""
    buffer_dir: str | None = None
    """Folder of the file of an mmap buffer; null: the system's folder for temporary files."""


class ClusterConfig(Section):
    """Settings of the distributed mode alone. What is null comes from torchrun, SLURM or flags."""

    num_nodes: Count | None = None
    num_workers: Count | None = None
    """Processes of each node that step environments and learn; null: as many as torchrun or SLURM starts, or
    one per usable core. IMPALA has actors and learners instead."""
    distributed_backend: Literal["gloo"] = "gloo"
    master_addr: str | None = None
    """Address of the first node, which all others reach."""
    master_port: Annotated[Count, Field(le=65535)] | None = None
    timeout_seconds: PositiveFloat = 120.0
    """A process that is silent, or makes no progress, for so long ends the run."""
    network_interface: str | None = None
    """The interface that gradients travel over; null: the one that reaches the first node."""
    compression: Literal["none", "bf16"] = "none"
    """bf16: gradients travel with 8 bits of mantissa, which halves the bytes."""
    overlap: bool = False
    """Sum the gradients of the last layers while those of the first are still being computed."""


class HardwareConfig(Section):
    device: Literal["cpu"] = "cpu"
    num_threads: Count | None = None
    """Threads of one process; null: OMP_NUM_THREADS if set, else one per usable physical core, or one where
    there are several processes."""
    microbatch_size: Count | None = None
    """Samples that learning takes through the network at once, through the dense layers alone where the
    passes of acting are kept; null: chosen for the network. Does not change the mathematics."""
    keep_acting_passes: bool | None = None
    """A2C and A3C go on from the passes through the convolutions with which they acted, which take memory
    until then, instead of repeating them; null: where that is at most a quarter of the machine's memory. Does
    not change the mathematics."""
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
