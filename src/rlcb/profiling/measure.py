"""Measuring a machine, and the profile that the measurements make."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from rlcb import cpu
from rlcb.config.config import Config
from rlcb.config.settings import EnvConfig
from rlcb.cpu import cpu_flags, cpu_identity
from rlcb.machine.efficiency import installed_torch
from rlcb.machine.profile import (
    EnvironmentSpeed,
    LayerSpeed,
    Machine,
    Network,
    NetworkSpeed,
    Profile,
    ReduceSpeed,
    Startup,
    env_key,
    host_name,
    resolved_model,
)
from rlcb.processes.measurement_pool import Measurers
from rlcb.software import describe_software

BENCH = "rlcb.profiling.bench"
STARTUP = ("imports", "environments", "network")

Show = Callable[[float, str], None]
"""Gets the share that is done and what is measured now."""


class MachineMeasurement:
    """Measures with one process for each core, which exist only meanwhile.

    Medians count, over all rounds. A machine drifts by some per cent within minutes: who holds what runs
    reach against what their parts allow measures the parts before the runs and once more after them.
    """

    def __init__(
        self, config: Config, envs: Sequence[EnvConfig], effort: Effort, check_stop: Callable[[], None]
    ) -> None:
        """`config` says network, environments and seed; `envs` are all that are stepped."""
        self.config, self.envs, self.effort, self.check_stop = config, envs, effort, check_stop
        self.cores = cpu.usable_cores()
        self.began = time.perf_counter()
        self.values: dict[tuple[Any, ...], list[float]] = {}
        self.facts: list[dict[str, Any]] = []
        """What the processes said of themselves."""
        self.steps: list[Step] = []
        self.layers: tuple[LayerSpeed, ...] = ()

    def measure(self, show: Show) -> None:
        """Everything. Raises UsageError if environments or network cannot be made, RunError if a process
        dies."""
        config, effort = self.config, self.effort
        precisions = ("float32", "bfloat16") if cpu.has_bfloat16() else ("float32",)
        show(0.0, "starting a process for each core")
        with self._processes() as measurers:
            self.facts = measurers.ask("describe")
            parameters, is_image = self.facts[0]["parameters"], len(self.facts[0]["observation_shape"]) == 3
            self.steps = plan(config, self.envs, effort, self.cores, precisions, parameters, is_image)
            self._take(measurers, self.steps, show)
            self.layers = layers_of(measurers.ask("layers", LEARNING, effort.seconds))

    def measure_parts(self, show: Show) -> None:
        """Once more what a timestep of a run consists of: environments and the network as runs use it."""
        how = ("channels_last", self.config.model.precision)
        parts = [step for step in self.steps if step.key[0] == "environment" or step.key[3:] == how]
        show(0.0, "starting a process for each core")
        with self._processes() as measurers:
            self._take(measurers, parts, show)

    def _processes(self) -> Measurers:
        largest = max(*self.effort.acting, *self.effort.learning, self.config.env.num_envs, ACTING, LEARNING)
        tuned = self.config.hardware.tune_allocator
        return Measurers(self.cores, BENCH, (self.config, largest), self.check_stop, tuned)

    def _take(self, measurers: Measurers, steps: Sequence[Step], show: Show) -> None:
        rounds = [*steps] * self.effort.rounds
        for number, step in enumerate(rounds):
            show(number / len(rounds), step.label)
            self.values.setdefault(step.key, []).append(statistics.fmean(answers(measurers, step)))

    def profile(self, load_of_others: float | None) -> Profile:
        """The profile from all that was measured until now."""
        medians = {key: statistics.median(each) for key, each in self.values.items()}
        return assemble(
            self.config,
            medians,
            self.facts,
            self.layers,
            duration_seconds=round(time.perf_counter() - self.began, 1),
            cpu_percent_of_others=load_of_others,
            machine=machine_of(medians, self.cores),
        )


def assemble(
    config: Config,
    medians: Mapping[tuple[Any, ...], float],
    facts: Sequence[Mapping[str, Any]],
    layers: tuple[LayerSpeed, ...],
    **rest: Any,
) -> Profile:
    """The profile from the medians of all steps and what the processes said of themselves."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    startup = {name: statistics.fmean(each["startup"][name] for each in facts) for name in STARTUP}
    return Profile(
        measured_at=now,
        git_commit=describe_software()["git_commit"],
        host=host_name(),
        network=network_of(config, facts[0]),
        environments=tuple(
            EnvironmentSpeed(
                id=key[1],
                distribution_mode=key[2],
                options=json.loads(key[3]),
                threads=key[4],
                num_envs=config.env.num_envs,
                seconds=seconds,
                measured_at=now,
            )
            for key, seconds in medians.items()
            if key[0] == "environment"
        ),
        forward=network_speeds(medians, "forward"),
        forward_backward=network_speeds(medians, "forward_backward"),
        act_and_learn=network_speeds(medians, "act_and_learn"),
        layers=layers,
        layers_size=LEARNING,
        reduce=tuple(
            ReduceSpeed(processes=key[1], bytes=key[2], seconds=seconds)
            for key, seconds in medians.items()
            if key[0] == "all_reduce"
        ),
        startup=Startup(**startup),
        **rest,
    )


def answers(measurers: Measurers, step: Step) -> list[float]:
    """What the processes of a step measured."""
    if step.key[0] != "all_reduce":
        return measurers.ask(step.key[0], *step.arguments, count=step.count)
    (port,) = measurers.ask("open_store", count=1)
    parts = [(rank, step.count, port, *step.arguments) for rank in range(step.count)]
    return measurers.ask_each("all_reduce", parts)


def machine_of(medians: Mapping[tuple[Any, ...], float], cores: int) -> Machine:
    described = cpu.describe_machine()
    return Machine(
        cpu_model=described["cpu_model"],
        identity=cpu_identity(),
        physical_cores=described["physical_cores"],
        usable_cores=cores,
        ram_gb=described["ram_gb"],
        flags=cpu_flags(),
        torch=installed_torch() or "",
        peak_flops=medians["peak", "float32"],
        peak_flops_bfloat16=medians.get(("peak", "bfloat16")),
        memory_bandwidth=medians["copy", False],
        cache_bandwidth=medians["copy", True],
    )


def network_of(config: Config, facts: Mapping[str, Any]) -> Network:
    shape = tuple(facts["observation_shape"])
    model = resolved_model(config.model, len(shape) == 3)
    keys = ("num_actions", "parameters", "forward_flops", "forward_backward_flops", "activation_bytes")
    named = {key: facts[key] for key in keys}
    return Network(model=model, name=model.architecture, observation_shape=shape, **named)


def network_speeds(medians: Mapping[tuple[Any, ...], float], name: str) -> tuple[NetworkSpeed, ...]:
    return tuple(
        NetworkSpeed(size=key[1], threads=key[2], layout=key[3], precision=key[4], seconds=seconds)
        for key, seconds in medians.items()
        if key[0] == name
    )


def layers_of(answers: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[LayerSpeed, ...]:
    """Layers with the mean of their times over the processes."""
    return tuple(
        LayerSpeed.model_validate({**same[0], "seconds": statistics.fmean(each["seconds"] for each in same)})
        for same in zip(*answers, strict=True)
    )


ACTING, LEARNING = 32, 128  # sizes at which layouts and precisions are compared
SMALL_SUM = 4096  # bytes: what a sum takes at the least


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    seconds: float
    """Of each pass of the network, at the least."""
    env_seconds: float
    acting: tuple[int, ...]
    """Samples of a forward pass."""
    learning: tuple[int, ...]
    """Samples of a forward and backward pass."""
    rounds: int
    """Times that everything is measured, one after another; medians count."""
    run_seconds: float
    """Of training in a short run of a real script."""


EFFORTS = {
    "quick": Effort(0.1, 0.2, (16, 32), (64, 128), 1, 1.0),
    "normal": Effort(0.2, 0.4, (8, 16, 32, 64), (32, 64, 128, 256), 1, 3.0),
    "thorough": Effort(0.5, 1.0, (4, 8, 16, 32, 64, 128), (16, 32, 64, 128, 256, 512), 3, 8.0),
}


@dataclass(frozen=True)
class Step:
    """One measurement: a method of the bench, called in `count` processes at the same time."""

    label: str
    key: tuple[Any, ...]
    """The method, and what tells its results apart."""
    arguments: tuple[Any, ...]
    count: int


def counts_up_to(cores: int) -> list[int]:
    """1, 2, 4, ... and the cores: numbers of threads or processes that are measured."""
    doubles = [2**exponent for exponent in range(cores.bit_length()) if 2**exponent < cores]
    return [*doubles, cores]


def plan(
    config: Config,
    envs: Sequence[EnvConfig],
    effort: Effort,
    cores: int,
    precisions: Sequence[str],
    parameters: int,
    is_image: bool,
) -> list[Step]:
    """Every measurement of a round; `precisions` are those that the processor has instructions for,
    `parameters` the size of the network, `is_image` whether it sees images, which have a layout."""
    steps = [
        Step(f"{precision} at its best", ("peak", precision), (precision, effort.seconds), cores)
        for precision in precisions
    ]
    for in_cache in (False, True):
        where = "the cache" if in_cache else "memory"
        steps.append(Step(f"copying in {where}", ("copy", in_cache), (in_cache, effort.seconds), cores))
    for threads in counts_up_to(cores):
        steps += steps_with(config, envs, effort, threads, cores // threads, is_image)
    for precision in precisions:
        if precision != config.model.precision:
            for name, size in (("forward", ACTING), ("forward_backward", LEARNING)):
                key = (name, size, 1, "channels_last", precision)
                steps.append(Step(f"the network in {precision}", key, (*key[1:], effort.seconds), cores))
    for processes in counts_up_to(cores)[1:]:
        for size in (SMALL_SUM, 4 * parameters):
            steps.append(
                Step(f"sums over {processes} processes", ("all_reduce", processes, size), (size,), processes)
            )
    return steps


def steps_with(
    config: Config,
    envs: Sequence[EnvConfig],
    effort: Effort,
    threads: int,
    processes: int,
    is_image: bool,
) -> Iterator[Step]:
    """What is measured for processes of so many threads."""
    who, plain = f"{processes} x {threads} threads", (threads, "channels_last", config.model.precision)

    def network(name: str, label: str, size: int, how: tuple[Any, ...]) -> Step:
        return Step(f"{label}, {who}", (name, size, *how), (size, *how, effort.seconds), processes)

    for env in envs:
        key = ("environment", *env_key(env), threads)
        arguments = (env, config.env.num_envs, threads, effort.env_seconds)
        yield Step(f"{env.id}, {who}", key, arguments, processes)
    share = max(1, config.env.num_envs // processes)
    for size in sorted({*effort.acting, config.env.num_envs, share}):
        yield network("forward", f"forward of {size}", size, plain)
        if is_image:
            yield network("act_and_learn", f"acting and learning of {size}", size, plain)
    for size in effort.learning:
        yield network("forward_backward", f"forward and backward of {size}", size, plain)
    if is_image:
        yield network("forward", "layout NCHW", ACTING, (threads, "NCHW", plain[2]))
        yield network("forward_backward", "layout NCHW", LEARNING, (threads, "NCHW", plain[2]))
