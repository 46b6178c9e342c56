"""What is known of this machine's speed: a profile, as it is measured, kept as JSON, and found again.

How a profile is measured is in profiling/measure.py; what follows from it in machine/limits.py and
profiling/advice.py.
"""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from rlcb import cpu
from rlcb.config.games import procgen_game
from rlcb.config.settings import (
    Count,
    DistributionMode,
    EnvConfig,
    ModelConfig,
    NonNegative,
    PositiveFloat,
    Section,
)
from rlcb.config.yaml_file import describe_validation_error
from rlcb.cpu import cpu_flags, cpu_identity
from rlcb.errors import RunError, UsageError
from rlcb.files import write_json
from rlcb.paths import PROJECT

FOLDER_VARIABLE = "RL_BENCHMARK_PROFILES"

Layout = Literal["channels_last", "NCHW"]
Precision = Literal["float32", "bfloat16"]


EnvKey = tuple[str, str, str]
"""Id, difficulty and, as JSON, options: what the speed of an environment depends on."""


def env_key(env: EnvConfig) -> EnvKey:
    options = env.kwargs if procgen_game(env.id) is None else env.procgen.model_dump(exclude_defaults=True)
    return (env.id, env.distribution_mode, json.dumps(options, sort_keys=True))


def describe_env(key: EnvKey) -> str:
    return " ".join(key if key[2] != "{}" else key[:2])


class EnvironmentSpeed(Section):
    """Stepping environments, as many processes of so many threads as there are cores for."""

    id: str
    distribution_mode: DistributionMode
    options: dict[str, Any]
    """Of Procgen those that are not its defaults, of other environments their keyword arguments."""
    num_envs: Count
    """Of each process."""
    threads: Count
    seconds: PositiveFloat
    """Of one process for a step of one environment."""
    measured_at: str

    @property
    def key(self) -> EnvKey:
        return (self.id, self.distribution_mode, json.dumps(self.options, sort_keys=True))


class NetworkSpeed(Section):
    """A pass of the network, as many processes of so many threads as there are cores for."""

    size: Count
    """Samples that go through it at once."""
    threads: Count
    layout: Layout
    precision: Precision
    seconds: PositiveFloat
    """Of one process for one sample."""


class LayerSpeed(Section):
    """The forward pass of the layers of one shape, one thread, all cores busy."""

    name: str
    flops: PositiveFloat
    """Floating-point operations for a sample: two for each multiplication and addition."""
    bytes: PositiveFloat
    """Input, output and, shared by the samples of a microbatch, weights: what has to move for a sample."""
    seconds: PositiveFloat


class ReduceSpeed(Section):
    """Summing a vector over processes."""

    processes: Count
    bytes: Count
    seconds: PositiveFloat


class Network(Section):
    model: ModelConfig
    name: str
    observation_shape: tuple[int, ...]
    num_actions: Count
    parameters: Count
    forward_flops: PositiveFloat
    """Of a sample."""
    forward_backward_flops: PositiveFloat
    activation_bytes: NonNegative
    """What is kept of a sample's pass through the convolutions until its gradient has gone back."""


class Machine(Section):
    cpu_model: str
    identity: str
    """What tells processors of one name apart, as the system puts it."""
    physical_cores: int | None
    usable_cores: Count
    ram_gb: PositiveFloat
    flags: tuple[str, ...]
    """Of the processor's, those that matter here."""
    torch: str
    peak_flops: PositiveFloat
    """Operations a second of one core in float32 at what it does best, all cores busy."""
    peak_flops_bfloat16: PositiveFloat | None
    """None: the processor has no instructions for it."""
    memory_bandwidth: PositiveFloat
    """Bytes a second, read and written, of one core that copies in main memory, all cores busy."""
    cache_bandwidth: PositiveFloat
    """... within its own cache."""


class Startup(Section):
    """Seconds until a process can begin, all cores starting at once."""

    imports: PositiveFloat
    environments: PositiveFloat
    network: PositiveFloat


class Setup(Section):
    """What a run can be told about a machine."""

    processes: Count
    """Workers, or IMPALA's actors; 1 in a sequential run."""
    learners: Count | None
    """IMPALA's; None where the processes that step environments learn as well."""
    threads: Count
    """Of each process."""
    num_envs: Count
    """In all."""
    microbatch_size: Count
    predicted_fps: PositiveFloat


class Reached(Section):
    """What a short run of the real script came to."""

    setup: Setup
    fps: PositiveFloat
    n_steps: Count
    batch_size: Count | None
    """Samples of a minibatch, or of a batch of IMPALA; None: the whole rollout."""
    updates: Count
    """Those that count; the first one does not."""
    startup_seconds: float
    """What the run took beside its training: to start and to end."""
    shares: dict[str, float]
    """Of the time, by phase."""


class Result(Section):
    """What an algorithm can reach in a mode on this machine, and what it does reach."""

    algorithm: str
    mode: str
    epochs: Count
    threads: Count
    """Of the limit: those of a sequential run, 1 for each core otherwise."""
    limit_fps: PositiveFloat
    """With the environments of the short run, or of the recommendation if there was none."""
    machine_limit_fps: PositiveFloat
    """Of all cores with a thread each, which a sequential run cannot reach."""
    parts: dict[str, float]
    """Share of the limit's time: env, forward, learn."""
    setup: Setup
    """The recommendation."""
    reached: Reached | None
    share: float | None
    """What the short run reached of the limit."""
    bottleneck: str


class Profile(Section):
    """All that was measured, and what follows."""

    schema_version: Literal[3] = 3
    measured_at: str
    git_commit: str | None
    """Of this project, which measured; None without git."""
    duration_seconds: float
    host: str
    cpu_percent_of_others: float | None
    """Share of the cores that other programs used before."""
    machine: Machine
    network: Network
    environments: tuple[EnvironmentSpeed, ...]
    forward: tuple[NetworkSpeed, ...]
    forward_backward: tuple[NetworkSpeed, ...]
    act_and_learn: tuple[NetworkSpeed, ...]
    """Forward and backward of samples that went forward when the policy acted; none without convolutions."""
    layers: tuple[LayerSpeed, ...]
    layers_size: NonNegative
    reduce: tuple[ReduceSpeed, ...]
    startup: Startup
    results: tuple[Result, ...] = ()

    @property
    def cores(self) -> int:
        return self.machine.usable_cores

    @property
    def precision(self) -> Precision:
        """What the network of this profile computes in."""
        return self.network.model.precision

    @property
    def file_name(self) -> str:
        """Host, network, precision, and what sizes of the network are not the usual ones."""
        words = [re.sub(r"[^A-Za-z0-9.-]", "-", self.host), self.network.name]
        if self.precision != "float32":
            words.append(self.precision)
        sizes = self.network.model.model_dump(exclude_defaults=True, exclude={"architecture", "precision"})
        for name, value in sizes.items():
            widths = value if isinstance(value, tuple) else (value,)
            words.append("-".join([name.replace("_", "-"), *map(str, widths)]))
        return "_".join(words) + ".json"


def profiles_folder() -> Path:
    """Where profiles are kept and where runs look for them."""
    return Path(os.environ.get(FOLDER_VARIABLE) or PROJECT / "profiles")


def host_name() -> str:
    return socket.gethostname() or "this-machine"


def write_profile(profile: Profile, folder: Path) -> Path:
    """Write a profile as JSON; returns its file. Raises RunError."""
    path = folder / profile.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, profile.model_dump(mode="json"))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def read_profile(path: Path) -> Profile:
    """Read a profile. Raises UsageError if the file cannot be read or is none."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read profile {path}: {error.strerror or error}") from None
    except ValidationError as error:
        text = describe_validation_error(error)
        raise UsageError(f"{path} is no profile of profile_cpu.py: {text[:200]}") from None


def why_not_here(profile: Profile, torch_version: str | None) -> str | None:
    """Why a profile does not hold for this process on this machine; None if it does."""
    now, cores = cpu.cpu_model(), cpu.usable_cores()
    machine = profile.machine
    if machine.cpu_model != now:
        return f"was made on another processor ({machine.cpu_model}; this is {now})"
    known = ((machine.identity, cpu_identity()), (", ".join(machine.flags), ", ".join(cpu_flags())))
    for before, here in known:
        if before != here:
            return f"was made on another processor of the same name ({before}; this is {here})"
    if machine.usable_cores != cores:
        return f"was made with {machine.usable_cores} usable cores; there are {cores} now"
    if machine.torch != torch_version:
        return f"was made with torch {machine.torch}; this is {torch_version}"
    return None


def resolved_model(model: ModelConfig, is_image: bool) -> ModelConfig:
    """The network's settings with its architecture spelled out, and without those that it does not use."""
    architecture = model.architecture
    if architecture == "auto":
        architecture = "impala" if is_image else "mlp"
    unused = {
        "impala": ("mlp_sizes",),
        "nature": ("impala_channels", "mlp_sizes"),
        "mlp": ("impala_channels", "hidden_size"),
    }[architecture]
    kept = model.model_dump(exclude=set(unused)) | {"architecture": architecture}
    return ModelConfig.model_validate(kept)
