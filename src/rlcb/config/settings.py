"""The sections of a configuration: each setting with its type, its limits and its default.

config/logging_settings.py has the section `logging`. config/config.py checks rules between sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rlcb.config.env_packages import ATARI, package_of
from rlcb.config.games import GAMES_WITH_MODE, MAX_LEVEL, canonical_id, procgen_game
from rlcb.config.values import (
    Coefficient,
    Count,
    CountOrAuto,
    Counts,
    Fraction,
    Hours,
    NonNegative,
    PositiveFloat,
    Seconds,
    Section,
    Widths,
)
from rlcb.config.wrappers import Wrapper

DistributionMode = Literal["easy", "hard", "extreme", "memory", "exploration"]

DEFAULT_NUM_LEVELS = 200
DEFAULT_POWERSGD_RANK = 4


class ProcgenOptions(Section):
    """Options that are passed to Procgen unchanged."""

    center_agent: bool = True
    use_backgrounds: bool = True
    use_monochrome_assets: bool = False
    restrict_themes: bool = False
    use_generated_assets: bool = False
    paint_vel_info: bool = False
    use_sequential_levels: bool = False


class AtariOptions(Section):
    """Gymnasium's preprocessing of Atari's frames: AtariPreprocessing, then FrameStackObservation."""

    frame_skip: Count = 4
    """Frames for which an action is repeated; the observation is the maximum of the last two."""
    frame_stack: Count = 4
    """Observations that the network sees at once, as channels of one image."""
    screen_size: Count = 84
    """Height and width in pixels, in grey."""
    noop_max: NonNegative = 30
    """An episode begins with 1 to this many frames without an action; 0: with none."""
    terminal_on_life_loss: bool = False
    """Whether a lost life ends an episode."""


def _is_atari(env_id: Any) -> bool:
    return isinstance(env_id, str) and package_of(env_id) is ATARI


class EnvConfig(Section):
    """The environments and their levels."""

    id: Annotated[str, AfterValidator(canonical_id)] = "procgen-coinrun-v0"
    """A Procgen game (coinrun, procgen-coinrun-v0), a Gymnasium id, or gym:<id> for the old Gym."""
    num_envs: Count = 32
    """Environments in total, over all processes."""
    group_size: Count | None = None
    """Environments that share one seed and, within a process, one native batch; null: the largest divisor of
    num_envs that is at most 8. Does not depend on the number of processes: they can share a group."""
    distribution_mode: DistributionMode = "easy"
    num_levels: NonNegative | None = None
    """Levels to train on, 0 for all; null: 200, or the one level of the distribution mode exploration."""
    start_level: NonNegative = 0
    procgen: ProcgenOptions = ProcgenOptions()
    kwargs: dict[str, Any] = Field(default={})
    """Keyword arguments for gymnasium.make; not for Procgen, whose options are in `procgen`."""
    wrappers: list[Wrapper] = Field(default=[])
    """Your own wrappers, as module:Class or {wrapper: module:Class, argument: value}; the first is the
    innermost one. Not for Procgen, whose environments step in native batches."""
    preprocessing: bool = True
    """Atari: grey, resized and stacked frames (`atari`). MiniGrid: the view as a vector of zeros and ones.
    false: observations as the environment gives them. No effect on other environments."""
    atari: AtariOptions | None = None
    """Filled in for Atari (ids ALE/...), null for all other environments."""

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
        if values.get("atari") is None and _is_atari(values.get("id")) and values.get("preprocessing", True):
            values["atari"] = {}
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
        if game is not None and self.wrappers:
            raise ValueError(
                f"env.wrappers = {self.wrappers!r}: Procgen steps its environments in native batches, which "
                "no wrapper of a single environment can see; leave it out"
            )
        self._check_atari()
        return self

    def _check_atari(self) -> None:
        if self.atari is None:
            return
        if not _is_atari(self.id) or not self.preprocessing:
            why = f"{self.id} is not one" if self.preprocessing else "env.preprocessing is false"
            raise ValueError(f"env.atari is for Atari games (ALE/Pong-v5) and their preprocessing, and {why}")
        for key in ("frameskip", "obs_type"):
            if key in self.kwargs:
                instead = "env.atari.frame_skip, or " if key == "frameskip" else ""
                raise ValueError(
                    f"env.kwargs.{key} = {self.kwargs[key]!r}: the preprocessing decides it; set {instead}"
                    "env.preprocessing to false"
                )

    @property
    def options(self) -> dict[str, Any]:
        """What distinguishes environments of one id and difficulty: Procgen's options, or the keyword
        arguments, wrappers and preprocessing, without defaults."""
        if procgen_game(self.id) is not None:
            return self.procgen.model_dump(exclude_defaults=True)
        others = self.model_dump(include={"wrappers", "preprocessing"}, exclude_defaults=True)
        atari = self.atari.model_dump(exclude_defaults=True) if self.atari is not None else {}
        return {**self.kwargs, **others, **({"atari": atari} if atari else {})}

    def of_id(self, env_id: str) -> EnvConfig:
        """Return these settings for another environment, without those that only this one has.

        Raises ValidationError if a setting does not fit the other environment.
        """
        values = self.model_dump() | {"id": env_id}
        game, other = procgen_game(self.id) is not None, procgen_game(env_id) is not None
        if game != other:
            values |= {"kwargs": {}, "wrappers": []}
        if not _is_atari(env_id):
            values["atari"] = None
        return EnvConfig.model_validate(values)

    @property
    def is_image(self) -> bool:
        """Whether observations are known to be images before an environment is made."""
        return procgen_game(self.id) is not None or self.atari is not None


class ModelConfig(Section):
    """The network."""

    architecture: Literal["auto", "impala", "nature", "mlp"] = "auto"
    """auto: the IMPALA-CNN for images, the MLP for vectors."""
    impala_channels: Widths = (16, 32, 32)
    hidden_size: Count = 256
    """Width of the dense layer after the convolutions (512 in the paper of the Nature CNN)."""
    mlp_sizes: Widths = (64, 64)
    precision: Literal["float32", "bfloat16"] = "float32"
    """Number format of all layers before the two heads; parameters, gradients and optimizer stay float32.
    bfloat16 is faster only on processors with instructions for it (Zen 4, Sapphire Rapids and later)."""


class TrainingConfig(Section):
    """Budget, rollouts, optimizer and losses."""

    seed: Annotated[NonNegative, Field(le=2**63 - 1)] = 42
    total_timesteps: Count | None = 25_000_000
    """Steps of all environments after which the run ends, rounded up to whole updates; null: no limit."""
    duration_hours: Hours | None = None
    """Hours of wall clock after which the run ends, also in words such as `30m`; null: no limit."""
    n_steps: Count = 128
    batch_size: Count | None = 1024
    """Samples in a minibatch; null: the whole rollout, as A2C and A3C need."""
    n_epochs: Count = 4
    learning_rate: PositiveFloat = 5e-4
    lr_schedule: Literal["constant", "linear"] = "constant"
    """linear: the learning rate falls to 0 over the run, by updates or, in a timed run, by time."""
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
    """An update ends after the epoch whose mean approximate KL divergence exceeds this; null: never."""
    normalize_rewards: bool = True
    """Divide rewards by the running standard deviation of the discounted return; reports show raw rewards."""
    reward_clip: PositiveFloat = 10.0


class ImpalaConfig(Section):
    """Settings for IMPALA only. The parallel and distributed modes have actors and learners, equally many on
    each node."""

    vtrace_clip_rho_threshold: PositiveFloat = 1.0
    """rho-bar: upper bound of the importance ratio in the value targets."""
    vtrace_clip_pg_rho_threshold: PositiveFloat = 1.0
    """Upper bound of the importance ratio in the policy gradient."""
    vtrace_clip_c_threshold: PositiveFloat = 1.0
    """c-bar: upper bound of the trace coefficients, before they are multiplied by training.gae_lambda."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """mean: over samples, as in the other algorithms; sum: over samples, as in the paper's code."""
    num_actors: Count | None = None
    """Processes per node that step environments; null: measured at the start, on the first node."""
    num_learners: Count | None = None
    """Processes per node that learn, each from its shard of every batch; null: measured at the start."""
    max_policy_lag: NonNegative = 2
    """Largest age of the behaviour policy, in updates; 0: actors and learners take turns.
    max_policy_lag + 1 batches of unrolls are in memory."""
    max_actor_restarts: NonNegative = 3
    """Failed actors per node that are replaced before the run fails, also counted over resumes."""
    actor_nice: Annotated[NonNegative, Field(le=19)] = 10
    """Nice value of actors, so that learners run first on shared cores."""
    check_unwritten: bool = False
    """Fill unrolls with sentinel values before they are written, and fail if a learner reads one."""
    actor_port: Annotated[NonNegative, Field(le=65535)] | None = None
    """Port on which a parallel run accepts actors of other machines (`rlcb join`); 0: any free port; null:
    it accepts none. There is no authentication."""
    max_remote_actors: Count = 64
    """Actors of other machines that a run accepts at the same time."""
    compress_unrolls: Literal["auto", "always", "never"] = "auto"
    """Whether actors of other machines compress their unrolls; auto: if that measures faster."""


class ParallelConfig(Section):
    """The processes of one machine."""

    num_workers: Count | None = None
    """Processes that step environments and learn; null: the largest divisor of env.num_envs up to the number
    of usable cores. A sequential run has one."""
    timeout_seconds: Seconds = 120.0
    """Seconds without progress of a worker after which the run fails. Time in which the run is suspended does
    not count."""
    check_every: Count = 100
    """Updates between checks that all workers have equal parameters; not for A3C, where they differ."""
    buffer: Literal["auto", "shared", "mmap"] = "auto"
    """Where the rollout is stored. auto and shared: in memory shared by all workers; mmap: in a file, for
    rollouts larger than the memory. In A3C each worker has its own."""
    buffer_dir: str | None = None
    """Folder for the file of an mmap buffer; null: the system's folder for temporary files."""


class ClusterConfig(Section):
    """Settings for the distributed mode only. Values that are null come from torchrun, SLURM or flags."""

    num_nodes: Count | None = None
    num_workers: Count | None = None
    """Processes per node that step environments and learn; null: as many as torchrun or SLURM starts, or one
    per usable core. Not for IMPALA, which has actors and learners."""
    node_workers: Counts | None = None
    """Workers of each node, such as [1, 3], where nodes have different numbers; set by the start of the run,
    as num_workers is. null: every node has num_workers."""
    distributed_backend: Literal["gloo"] = "gloo"
    master_addr: str | None = None
    """Address of the first node, reachable from all others."""
    master_port: Annotated[Count, Field(le=65535)] | None = None
    timeout_seconds: Seconds = 120.0
    """Seconds without a message or progress of a process after which the run fails."""
    network_interface: str | None = None
    """Network interface for gradients; null: the one that reaches the first node."""
    compression: Literal["none", "bf16", "powersgd"] = "none"
    """bf16: send gradients as bfloat16, in half the bytes; they are added as float32. powersgd: send the
    matrices of the gradient in low rank, in a 20th to a 50th of the bytes; what a sum leaves out, later ones
    contain."""
    powersgd_rank: Count | None = None
    """Rank of the matrices with compression = powersgd; null: 4. A higher one approximates the gradient
    better and sends more."""
    reduction: Literal["auto", "ring", "hierarchical", "direct"] = "auto"
    """How ranks sum. ring: one ring of all ranks. hierarchical: within each node, in shared memory where the
    system can, then over a ring of nodes. direct: within each node, then by messages from each node to each
    other one. auto: what is fastest at the start. The sums are equal up to floating-point error."""
    overlap: bool = False
    """Sum the gradients of the last layers while the gradients of the first are computed."""
    elastic: bool = False
    """IMPALA only: node 0 learns and the other nodes only act for it. They may die, leave, and come at any
    time; their number is no part of the run."""
    average_every: CountOrAuto | None = None
    """For slow networks, PPO and A2C: each node learns from its own rollouts, and every so many updates
    parameters and moments of the optimizer become their means over the nodes. auto: the smallest number with
    which averages take less than a tenth of the time, measured over the first updates, but at most 10.
    null: every gradient is summed over all nodes."""

    @model_validator(mode="before")
    @classmethod
    def _default_rank(cls, data: Any) -> Any:
        """Replace a missing rank by its default, so that config.yaml contains it."""
        if not isinstance(data, Mapping) or data.get("compression") != "powersgd":
            return data
        given = data.get("powersgd_rank")
        return {**data, "powersgd_rank": DEFAULT_POWERSGD_RANK if given is None else given}

    @model_validator(mode="after")
    def _check(self) -> ClusterConfig:
        if self.powersgd_rank is not None and self.compression != "powersgd":
            raise ValueError(
                f"cluster.powersgd_rank = {self.powersgd_rank} and cluster.compression = {self.compression}: "
                "only powersgd has a rank"
            )
        if self.overlap and self.compression == "powersgd":
            raise ValueError(
                "cluster.overlap = true and cluster.compression = powersgd: powersgd sums the whole gradient "
                "in two steps after the backward pass; set one of them"
            )
        return self


KernelsSetting = Literal["auto", "native", "torch"]


class HardwareConfig(Section):
    """Threads, memory and allocator."""

    device: Literal["cpu"] = "cpu"
    num_threads: Count | None = None
    """Threads of each process; null: OMP_NUM_THREADS if set, else the usable physical cores for a single
    process, or 1 for each of several."""
    pin_workers: bool = False
    """Keep each worker of PPO, A2C and A3C on cores of its own (Linux): one for each of its threads, of one
    NUMA node, and of no other run that pins. Does not change the result."""
    microbatch_size: Count | None = None
    """Samples that pass through the network at once while it learns; null: chosen for the network. With
    cached activations it applies to the dense layers only. Does not change the result."""
    keep_acting_passes: bool | None = None
    """Whether A2C and A3C learn from the activations that acting cached, instead of computing them again;
    null: if they take at most a quarter of the memory. Does not change the result."""
    kernels: KernelsSetting = "auto"
    """Kernels of convolutions and the dense layer: native (rlcb/kernels, compiled for this processor), torch,
    or auto: native where they can be used. Native ones are faster; results differ in the last digits."""
    tune_allocator: bool = True
    """Make glibc reuse freed pages instead of returning them to the system (Linux)."""
