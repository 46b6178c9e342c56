"""Measuring a machine, and the profile that the measurements make."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from src import cpu_utils
from src.config import Config
from src.cpu_identity import cpu_flags, cpu_identity
from src.measuring import Measurers
from src.profiling import (
    EnvironmentSpeed,
    LayerSpeed,
    Machine,
    Network,
    NetworkSpeed,
    Profile,
    ReduceSpeed,
    Startup,
    host_name,
    resolved_model,
)
from src.profiling_efficiency import installed_torch
from src.profiling_steps import ACTING, LEARNING, Effort, Step, plan
from src.settings import EnvConfig
from src.software import describe_software

BENCH = "src.profiling_measurements"
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
        self.cores = cpu_utils.usable_cores()
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
        precisions = ("float32", "bfloat16") if cpu_utils.has_bfloat16() else ("float32",)
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
    described = cpu_utils.describe_machine()
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
