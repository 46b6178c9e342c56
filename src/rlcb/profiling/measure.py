"""The measurement of a machine: which measurements there are, and the profile assembled from them."""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from rlcb import cpu
from rlcb.config.config import Config
from rlcb.config.settings import EnvConfig
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
    resolved_model,
)
from rlcb.processes.measurement_pool import Measurers
from rlcb.software import describe_software

BENCH = "rlcb.profiling.bench:MachineBench"
ACTING, LEARNING = 32, 128  # sizes at which kernels and precisions are compared
SMALL_SUM = 4096  # bytes of the all-reduce that shows the latency

Key = tuple[Any, ...]
"""A method of the bench, followed by what distinguishes its measurements."""
Show = Callable[[float, str], None]
"""Receives the share of the work that is done, from 0 to 1, and what is measured now."""


@dataclass(frozen=True)
class Effort:
    """The sizes and durations of a profile's measurements."""

    seconds: float
    """Shortest duration of each measurement of the network."""
    env_seconds: float
    """Duration of each measurement of environments."""
    acting: tuple[int, ...]
    """Samples in a forward pass."""
    learning: tuple[int, ...]
    """Samples in a forward and backward pass."""
    rounds: int
    """Repetitions of all measurements; the medians count."""
    run_seconds: float
    """Seconds of training in a short run."""


EFFORTS = {
    "quick": Effort(0.1, 0.2, (16, 32), (64, 128), 1, 1.0),
    "normal": Effort(0.2, 0.4, (8, 16, 32, 64), (32, 64, 128, 256), 1, 8.0),
    "thorough": Effort(0.5, 1.0, (4, 8, 16, 32, 64, 128), (16, 32, 64, 128, 256, 512), 3, 8.0),
}


@dataclass(frozen=True)
class Step:
    """One measurement: a method of the bench, called in `count` processes at the same time."""

    label: str
    key: Key
    arguments: tuple[Any, ...]
    count: int


def counts_up_to(cores: int) -> list[int]:
    """Return 1, 2, 4, ... below `cores`, and `cores`: the numbers of threads and processes to measure."""
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
) -> Iterator[Step]:
    """Yield all measurements of a round.

    `precisions` are those that the processor supports, `parameters` is the size of the network, and
    `is_image` says whether it sees images and has convolutions.
    """
    precision, num_envs, seconds = config.model.precision, config.env.num_envs, effort.seconds
    for each in precisions:
        yield Step(f"{each} at its best", ("peak", each), (each, seconds), cores)
    for in_cache, where in ((False, "memory"), (True, "the cache")):
        yield Step(f"copying in {where}", ("copy", in_cache), (in_cache, seconds), cores)
    for threads in counts_up_to(cores):
        processes = cores // threads
        who = f"{processes} x {threads} threads"
        for env in envs:
            arguments = (env, num_envs, threads, effort.env_seconds)
            yield Step(f"{env.id}, {who}", ("environment", *env_key(env), threads), arguments, processes)
        sizes = sorted({*effort.acting, num_envs, max(1, num_envs // processes)})
        passes = [("forward", size, "channels_last") for size in sizes]
        passes += [("forward_backward", size, "channels_last") for size in effort.learning]
        if is_image:
            passes += [("act_and_learn", size, "channels_last") for size in sizes]
            passes += [("forward", ACTING, "torch"), ("forward_backward", LEARNING, "torch")]
        for name, size, layout in passes:
            how = (size, threads, layout, precision)
            yield Step(f"{name} of {size}, {layout}, {who}", (name, *how), (*how, seconds), processes)
    for each in set(precisions) - {precision}:
        for name, size in (("forward", ACTING), ("forward_backward", LEARNING)):
            step = (size, 1, "channels_last", each)
            yield Step(f"{name} of {size} in {each}", (name, *step), (*step, seconds), cores)
    for processes in counts_up_to(cores)[1:]:
        for size in (SMALL_SUM, 4 * parameters):
            label = f"sums over {processes} processes"
            yield Step(label, ("all_reduce", processes, size), (size,), processes)


class MachineMeasurement:
    """Measures a machine with one process for each core, and assembles the profile.

    A machine's speed drifts by several percent within minutes. Callers that compare runs with what their
    parts allow therefore call `measure` before the first run and `measure_parts` after each.
    """

    def __init__(
        self, config: Config, envs: Sequence[EnvConfig], effort: Effort, check_stop: Callable[[], None]
    ) -> None:
        """`config` gives the network, the first environment and the seed; all of `envs` are stepped."""
        self.config, self.envs, self.effort, self.check_stop = config, envs, effort, check_stop
        self.cores = cpu.usable_cores()
        self.start = time.perf_counter()
        self.steps: list[Step] = []
        self.values: dict[Key, list[float]] = {}
        self.facts: list[dict[str, Any]] = []
        """What each process's bench describes."""
        self.layers: tuple[LayerSpeed, ...] = ()

    def measure(self, show: Show) -> None:
        """Measure everything.

        Raises UsageError if the environments or the network cannot be made, RunError if a process dies.
        """
        precisions = ("float32", "bfloat16") if cpu.has_bfloat16() else ("float32",)
        with self._processes(show) as measurers:
            self.facts = measurers.ask("describe")
            parameters, is_image = self.facts[0]["parameters"], len(self.facts[0]["observation_shape"]) == 3
            self.steps = list(
                plan(self.config, self.envs, self.effort, self.cores, precisions, parameters, is_image)
            )
            self._take(measurers, self.steps, show)
            layers = measurers.ask("layers", LEARNING, self.effort.seconds)
        self.layers = tuple(
            LayerSpeed.model_validate(
                {**same[0], "seconds": statistics.fmean(each["seconds"] for each in same)}
            )
            for same in zip(*layers, strict=True)
        )

    def measure_parts(self, threads: Collection[int], show: Show) -> None:
        """Measure again what a timestep consists of, with these numbers of threads in each process: the
        environments, and the network as runs use it."""
        how = ("channels_last", self.config.model.precision)

        def wanted(key: Key) -> bool:
            if key[0] == "environment":
                return key[-1] in threads
            return key[3:] == how and key[2] in threads

        with self._processes(show) as measurers:
            self._take(measurers, [step for step in self.steps if wanted(step.key)], show)

    def _processes(self, show: Show) -> Measurers:
        show(0.0, "starting a process for each core")
        largest = max(*self.effort.acting, *self.effort.learning, self.config.env.num_envs, ACTING, LEARNING)
        tuned = self.config.hardware.tune_allocator
        return Measurers(self.cores, BENCH, (self.config, largest), self.check_stop, tuned)

    def _take(self, measurers: Measurers, steps: Sequence[Step], show: Show) -> None:
        """Make measurements and keep the mean over the processes of each."""
        rounds = [*steps] * self.effort.rounds
        for number, step in enumerate(rounds):
            show(number / len(rounds), step.label)
            self.values.setdefault(step.key, []).append(statistics.fmean(answers(measurers, step)))

    def profile(self, cpu_percent_of_others: float | None, newest: int | None = None) -> Profile:
        """Return the profile: medians of all measurements so far, or of the `newest` ones of each part."""
        latest = None if newest is None else -newest * self.effort.rounds
        medians = {key: statistics.median(each[latest:]) for key, each in self.values.items()}
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        startup = {
            name: statistics.fmean(each["startup"][name] for each in self.facts)
            for name in Startup.model_fields
        }
        return Profile(
            measured_at=now,
            git_commit=describe_software()["git_commit"],
            duration_seconds=round(time.perf_counter() - self.start, 1),
            host=socket.gethostname() or "this-machine",
            cpu_percent_of_others=cpu_percent_of_others,
            machine=measured_machine(medians, self.cores),
            network=network_of(self.config, self.facts[0]),
            environments=tuple(
                EnvironmentSpeed(
                    id=env_id,
                    distribution_mode=mode,
                    options=json.loads(options),
                    threads=threads,
                    num_envs=self.config.env.num_envs,
                    seconds=seconds,
                    measured_at=now,
                )
                for (env_id, mode, options, threads), seconds in with_name(medians, "environment")
            ),
            forward=network_speeds(medians, "forward"),
            forward_backward=network_speeds(medians, "forward_backward"),
            act_and_learn=network_speeds(medians, "act_and_learn"),
            layers=self.layers,
            layers_size=LEARNING,
            reduce=tuple(
                ReduceSpeed(processes=processes, bytes=size, seconds=seconds)
                for (processes, size), seconds in with_name(medians, "all_reduce")
            ),
            startup=Startup(**startup),
        )


def answers(measurers: Measurers, step: Step) -> list[float]:
    """Return the answer of each process of a step."""
    if step.key[0] != "all_reduce":
        return measurers.ask(step.key[0], *step.arguments, count=step.count)
    (port,) = measurers.ask("open_store", count=1)
    parts = [(rank, step.count, port, *step.arguments) for rank in range(step.count)]
    return measurers.ask_each("all_reduce", parts)


def with_name(medians: Mapping[Key, float], name: str) -> Iterator[tuple[Key, float]]:
    """Yield the rest of each key and the median of one method's measurements."""
    return ((key[1:], seconds) for key, seconds in medians.items() if key[0] == name)


def network_speeds(medians: Mapping[Key, float], name: str) -> tuple[NetworkSpeed, ...]:
    """Return the speeds that one of the bench's network methods measured."""
    return tuple(
        NetworkSpeed(size=size, threads=threads, layout=layout, precision=precision, seconds=seconds)
        for (size, threads, layout, precision), seconds in with_name(medians, name)
    )


def measured_machine(medians: Mapping[Key, float], cores: int) -> Machine:
    """Return the description of this machine with its measured peaks and bandwidths."""
    described = cpu.describe_machine()
    return Machine(
        cpu_model=described["cpu_model"],
        identity=cpu.cpu_identity(),
        physical_cores=described["physical_cores"],
        usable_cores=cores,
        ram_gb=described["ram_gb"],
        flags=cpu.cpu_flags(),
        torch=installed_torch() or "",
        peak_flops=medians["peak", "float32"],
        peak_flops_bfloat16=medians.get(("peak", "bfloat16")),
        memory_bandwidth=medians["copy", False],
        cache_bandwidth=medians["copy", True],
    )


def network_of(config: Config, facts: Mapping[str, Any]) -> Network:
    """Return the description of the network from what a bench says of it."""
    shape = tuple(facts["observation_shape"])
    model = resolved_model(config.model, len(shape) == 3)
    measured = Network.model_fields.keys() - {"model", "name", "observation_shape"}
    values = {key: facts[key] for key in measured}
    return Network(model=model, name=model.architecture, observation_shape=shape, **values)
