"""The profile of a machine: its measured speed as a JSON file, and whether it holds for this machine.

profiling/measure.py measures a profile; machine/limits.py and profiling/advice.py calculate with it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from rlcb import cpu
from rlcb.config.settings import DistributionMode, EnvConfig, ModelConfig
from rlcb.config.validation import describe_validation_error
from rlcb.config.values import Count, NonNegative, PositiveFloat, Section
from rlcb.errors import RunError, UsageError
from rlcb.files import write_json
from rlcb.paths import user_folder

FOLDER_VARIABLE = "RL_BENCHMARK_PROFILES"

Precision = Literal["float32", "bfloat16"]
EnvKey = tuple[str, str, str]
"""What the speed of an environment depends on: its id, its difficulty and its options as JSON."""


def env_key(env: EnvConfig) -> EnvKey:
    """Return the key under which a profile stores the speed of this environment."""
    return (env.id, env.distribution_mode, json.dumps(env.options, sort_keys=True))


def describe_env(key: EnvKey) -> str:
    """`procgen-coinrun-v0 easy`, followed by the options if there are any."""
    return " ".join(key if key[2] != "{}" else key[:2])


class EnvironmentSpeed(Section):
    """Speed of one environment, stepped by `cores // threads` processes at the same time."""

    id: str
    distribution_mode: DistributionMode
    options: dict[str, Any]
    """Procgen: the options that differ from the defaults. Other environments: their keyword arguments, and
    the settings of wrappers and preprocessing that differ from the defaults."""
    num_envs: Count
    """Environments of each process."""
    threads: Count
    """Threads of each process."""
    seconds: PositiveFloat
    """Seconds of one process for one step of one environment."""
    measured_at: str

    @property
    def key(self) -> EnvKey:
        return (self.id, self.distribution_mode, json.dumps(self.options, sort_keys=True))


class NetworkSpeed(Section):
    """Speed of a pass of the network, made by `cores // threads` processes at the same time."""

    size: Count
    """Samples in one pass."""
    threads: Count
    """Threads of each process."""
    layout: Literal["channels_last", "torch", "NCHW"]
    """channels_last: as runs compute; torch: the same with PyTorch's kernels; NCHW: in old profiles only."""
    precision: Precision
    seconds: PositiveFloat
    """Seconds of one process for one sample."""


class LayerSpeed(Section):
    """Forward pass of all layers of one shape, with one thread while all cores are busy."""

    name: str
    flops: PositiveFloat
    """Floating-point operations for one sample; a multiplication and an addition are two."""
    bytes: PositiveFloat
    """Bytes moved for one sample: input, output, and its part of the weights."""
    seconds: PositiveFloat
    """Seconds for one sample."""


class ReduceSpeed(Section):
    """Speed of an all-reduce."""

    processes: Count
    bytes: Count
    seconds: PositiveFloat


class Network(Section):
    """The network that was measured."""

    model: ModelConfig
    name: str
    observation_shape: tuple[int, ...]
    num_actions: Count
    parameters: Count
    forward_flops: PositiveFloat
    """Floating-point operations for one sample."""
    forward_backward_flops: PositiveFloat
    activation_bytes: NonNegative
    """Bytes of the convolutions' activations that one sample needs for its backward pass."""
    kernels: Literal["native", "torch"] = "torch"
    """What computes the convolutions of runs; old profiles measured PyTorch's kernels."""


class Machine(Section):
    """The hardware, the torch version, and what one busy core can do at best."""

    cpu_model: str
    identity: str
    """Family, model and stepping, which distinguish processors of the same name."""
    physical_cores: int | None
    usable_cores: Count
    ram_gb: PositiveFloat
    flags: tuple[str, ...]
    """Instruction sets that matter for speed."""
    torch: str
    peak_flops: PositiveFloat
    """Operations per second of one core in its best float32 kernel, with all cores busy."""
    peak_flops_bfloat16: PositiveFloat | None
    """The same in bfloat16; None if the processor has no instructions for it."""
    memory_bandwidth: PositiveFloat
    """Bytes per second, read plus written, that one core copies in main memory, with all cores busy."""
    cache_bandwidth: PositiveFloat
    """The same within the core's own cache."""


class Startup(Section):
    """Seconds until a process is ready, when all cores start one at the same time."""

    imports: PositiveFloat
    environments: PositiveFloat
    network: PositiveFloat


class Setup(Section):
    """The settings of a run that depend on the machine."""

    processes: Count
    """Workers, or IMPALA's actors; 1 in a sequential run."""
    learners: Count | None
    """IMPALA's learners; None for other algorithms, whose workers also learn."""
    threads: Count
    """Threads of each process."""
    num_envs: Count
    """Environments in all processes together."""
    microbatch_size: Count
    predicted_fps: PositiveFloat


class ShortRun(Section):
    """The speed that a short run of the training script reached."""

    setup: Setup
    fps: PositiveFloat
    n_steps: Count
    batch_size: Count | None
    """Samples of a minibatch, or of an IMPALA batch; None means the whole rollout."""
    updates: Count
    """Updates in the measured time, which excludes the warm-up."""
    startup_seconds: float
    """Seconds of the run outside of training: start and end."""
    shares: dict[str, float]
    """Share of the time by phase."""
    limit_fps: PositiveFloat | None = None
    """Limit by what was measured right before and right after the run; None in old profiles."""
    machine_limit_fps: PositiveFloat | None = None
    """The same for all cores with one thread each."""


class Result(Section):
    """The limit, the recommendation and the short run of one algorithm and mode."""

    algorithm: str
    mode: str
    epochs: Count
    threads: Count
    """Threads per process that the limit assumes: the run's in sequential mode, else 1 on each core."""
    limit_fps: PositiveFloat
    """The short run's limit, or without a short run that of the recommendation."""
    machine_limit_fps: PositiveFloat
    """Limit of all cores with one thread each, which a sequential run cannot reach."""
    parts: dict[str, float]
    """Share of the time at the limit: env, forward, learn."""
    setup: Setup
    """The recommended setup."""
    reached: ShortRun | None
    share: float | None
    """Speed of the short run divided by the limit."""
    bottleneck: str


class Profile(Section):
    """All measurements of one machine and one network, and the results calculated from them."""

    schema_version: Literal[3] = 3
    measured_at: str
    git_commit: str | None
    """Commit of this project when it measured; None without git."""
    duration_seconds: float
    host: str
    cpu_percent_of_others: float | None
    """Percentage of all cores that other programs used before the measurement."""
    machine: Machine
    network: Network
    environments: tuple[EnvironmentSpeed, ...]
    forward: tuple[NetworkSpeed, ...]
    forward_backward: tuple[NetworkSpeed, ...]
    act_and_learn: tuple[NetworkSpeed, ...]
    """Forward and backward passes with cached activations; empty for networks without convolutions."""
    layers: tuple[LayerSpeed, ...]
    layers_size: NonNegative
    """Samples in the pass in which the layers were measured."""
    reduce: tuple[ReduceSpeed, ...]
    startup: Startup
    results: tuple[Result, ...] = ()

    @property
    def cores(self) -> int:
        return self.machine.usable_cores

    @property
    def precision(self) -> Precision:
        """The precision in which the network computes."""
        return self.network.model.precision

    @property
    def file_name(self) -> str:
        """Host, network, precision unless float32, and the network's sizes unless they are the defaults."""
        words = [re.sub(r"[^A-Za-z0-9.-]", "-", self.host), self.network.name]
        if self.precision != "float32":
            words.append(self.precision)
        sizes = self.network.model.model_dump(exclude_defaults=True, exclude={"architecture", "precision"})
        for name, value in sizes.items():
            widths = value if isinstance(value, tuple) else (value,)
            words.append("-".join([name.replace("_", "-"), *map(str, widths)]))
        return "_".join(words) + ".json"


def profiles_folder() -> Path:
    """Return the folder in which profiles are written and in which runs look for them."""
    return Path(os.environ.get(FOLDER_VARIABLE) or user_folder() / "profiles")


def write_profile(profile: Profile, folder: Path) -> Path:
    """Write a profile as JSON and return its path. Raises RunError."""
    path = folder / profile.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, profile.model_dump(mode="json"))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def read_profile(path: Path) -> Profile:
    """Read a profile. Raises UsageError if the file cannot be read or is not a profile."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read profile {path}: {error.strerror or error}") from None
    except ValidationError as error:
        text = describe_validation_error(error, Profile)
        raise UsageError(f"{path} is not a profile of profile_cpu.py: {text[:200]}") from None


def mismatch_with_machine(profile: Profile, torch_version: str | None) -> str | None:
    """Return why a profile does not hold on this machine, or None. The text continues `the profile ...`."""
    machine, cpu_model, cores = profile.machine, cpu.cpu_model(), cpu.usable_cores()
    if machine.cpu_model != cpu_model:
        return f"was made on another processor ({machine.cpu_model}; this is {cpu_model})"
    for before, now in (
        (machine.identity, cpu.cpu_identity()),
        (", ".join(machine.flags), ", ".join(cpu.cpu_flags())),
    ):
        if before != now:
            return f"was made on another processor of the same name ({before}; this is {now})"
    if machine.usable_cores != cores:
        return f"was made with {machine.usable_cores} usable cores; there are {cores} now"
    if machine.torch != torch_version:
        return f"was made with torch {machine.torch}; this is {torch_version}"
    return None


def resolved_model(model: ModelConfig, is_image: bool) -> ModelConfig:
    """Return the network's settings with `auto` replaced and all unused settings at their defaults."""
    architecture = model.architecture
    if architecture == "auto":
        architecture = "impala" if is_image else "mlp"
    unused = {
        "impala": {"mlp_sizes"},
        "nature": {"impala_channels", "mlp_sizes"},
        "mlp": {"impala_channels", "hidden_size"},
    }[architecture]
    return ModelConfig.model_validate(model.model_dump(exclude=unused) | {"architecture": architecture})
