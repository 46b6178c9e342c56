"""Which measurements a profile is made of, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from src.config import Config
from src.profiling import env_key
from src.settings import EnvConfig

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
