"""How many actors and learners suit this machine: measured in a few seconds before a run of IMPALA. In a
distributed run each node has as many.

One process for each core acts and then learns as the run will, all at the same time, so that the metrics are
those of a machine that is busy. The split that is predicted to be fastest is taken.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rlcb import cpu
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.processes.measurement_pool import Measurers
from rlcb.text import counted

if TYPE_CHECKING:
    from rlcb.training.base import LearningProcess

KEYS = ("num_actors", "num_learners")  # settings that a calibration finds
ACT_SECONDS, LEARN_SECONDS = 0.7, 1.5
START_SECONDS = 120.0  # for all of it
CROWDED = 0.05  # what more actors than cores have to promise: times as close as that are told apart by noise
MAX_SIZES = 3  # numbers of environments per actor that are tried


@dataclass(frozen=True)
class Calibration:
    """The measurements of a calibration, made on busy cores, and the numbers of processes that follow."""

    cores: int
    act_seconds: dict[int, float]
    """Environments of an actor -> seconds of one core for a timestep: the environment and the network."""
    learn_seconds: float
    """Seconds of one core to learn from a timestep."""
    num_actors: int
    num_learners: int
    timesteps_per_second: float
    """What this split is predicted to reach."""
    limit: float
    """Timesteps per second of cores that never idle, acting with that many environments an actor. This and
    the other metrics are those of one node."""

    def describe(self) -> str:
        act = ", ".join(f"{1e3 * each:.3f} with {n}" for n, each in sorted(self.act_seconds.items()))
        return (
            f"a timestep takes a core {1e3 * self.learn_seconds:.3f} ms to learn from and to act {act} "
            f"environments: {counted(self.num_actors, 'actor')}, {counted(self.num_learners, 'learner')}, "
            f"about {self.timesteps_per_second:,.0f} timesteps/s"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any] | None) -> Calibration | None:
        return None if data is None else Calibration(**data)


def candidates(config: Config, cores: int) -> list[int]:
    """Numbers of actors to try: those that divide the environments, around one a core, most first."""
    if config.impala.num_actors is not None:
        return [config.impala.num_actors]
    environments = config.envs_per_node
    unroll, batch = config.training.n_steps, config.timesteps_per_update // config.num_nodes
    fitting = [
        actors
        for actors in range(1, min(environments, 2 * cores) + 1)
        if environments % actors == 0 and batch % (unroll * environments // actors) == 0
    ]
    fitting = fitting or [1]
    above = [actors for actors in fitting if actors > cores][:1]
    return (above + sorted((each for each in fitting if each <= cores), reverse=True))[:MAX_SIZES]


def fastest_split(
    config: Config, cores: int, act_seconds: dict[int, float], learn_seconds: float, microbatch_size: int
) -> Calibration:
    """The split that the measured times predict to be fastest; of equal ones that with the fewest processes.
    More actors than cores have to be faster by CROWDED.

    Where there are more processes than cores, actors yield to learners: both sides work in turns, each on as
    many cores as it has processes. Learners beyond one microbatch each would gain nothing.
    """
    most = max(1, min(cores, math.ceil(config.timesteps_per_update / config.num_nodes / microbatch_size)))
    learner_counts = [config.impala.num_learners] if config.impala.num_learners else range(1, most + 1)

    def predicted(actors: int, learners: int) -> float:
        act = act_seconds[config.envs_per_node // actors] / min(actors, cores)
        learn = learn_seconds / min(learners, cores)
        return 1 / (act + learn if actors + learners > cores else max(act, learn))

    def promise(split: tuple[int, int]) -> float:
        crowded = split[0] > cores
        return round(predicted(*split) * (1 - CROWDED if crowded else 1), 6)

    splits = sorted(
        (config.envs_per_node // size, learners) for size in act_seconds for learners in learner_counts
    )
    actors, learners = max(splits, key=promise)
    busy = cores / (act_seconds[config.envs_per_node // actors] + learn_seconds)
    return Calibration(cores, act_seconds, learn_seconds, actors, learners, predicted(actors, learners), busy)


def calibrate(config: Config, check_stop: Callable[[], None]) -> tuple[Config, Calibration]:
    """Measure, and return the configuration with the number of actors and learners that follows.

    `check_stop` is called while waiting; what it raises ends the measurement. Raises UsageError if the
    environments cannot be made.
    """
    cores = cpu.usable_cores()
    sizes = [config.envs_per_node // actors for actors in candidates(config, cores)]
    tuned, act = config.hardware.tune_allocator, {}
    advice = "; with impala.num_actors and impala.num_learners nothing has to be measured"
    with Measurers(
        cores, f"{__name__}:ActorBench", (config,), check_stop, tuned, START_SECONDS, advice
    ) as measurers:
        for size in sizes:
            measurers.ask("begin", size)
            act[size] = statistics.fmean(measurers.ask("act"))
        microbatch_size, *_ = measurers.ask("prepare_learning")
        learn = statistics.fmean(measurers.ask("learn"))
    chosen = fastest_split(config, cores, act, learn, microbatch_size)
    data = config.model_dump()
    data["impala"] |= {"num_actors": chosen.num_actors, "num_learners": chosen.num_learners}
    return build_config(data, "calibration"), chosen


def with_split_of(config: Config, before: Config) -> Config:
    """The configuration of a run that goes on, with the numbers of actors and learners that the run had
    `before` where it leaves them open."""
    if not config.has_actors:
        return config
    data = config.model_dump()
    for key in KEYS:
        if data["impala"][key] is None:
            data["impala"][key] = getattr(before.impala, key)
    return build_config(data, "the run that goes on")


class ActorBench:
    """The bench of a calibration: acts and learns as the run will."""

    def __init__(self, import_seconds: float, config: Config) -> None:
        cpu.set_torch_threads(1)
        self.config = config
        self.process: LearningProcess | None = None
        self.env: Any = None

    def begin(self, size: int) -> None:
        """Be an actor of `size` environments."""
        from rlcb.config.config import largest_divisor
        from rlcb.envs.vector_env import make_vector_env, spaces_of
        from rlcb.rl.collector import Collector
        from rlcb.rl.rollout_buffer import RolloutBuffer
        from rlcb.seeding import group_seed
        from rlcb.training.base import LearningProcess, ProcessSetup

        config, seed = self.config, self.config.training.seed
        if self.env is not None:
            self.env.close()
        group = largest_divisor(size, config.group_size)
        seeds = [group_seed(seed, each) for each in range(size // group)]
        self.env = make_vector_env(config.env, seeds, group, 0)
        spaces = spaces_of(self.env)
        if self.process is None:
            self.process = LearningProcess(ProcessSetup(config), spaces)
        process = self.process
        self.rollout = RolloutBuffer(config.training.n_steps, size, spaces)
        self.collector = Collector(self.env, process.model, seed, 0, process.timer, lambda: None)
        self.collector.collect(self.rollout, 0)

    def act(self) -> float:
        """Seconds of a timestep."""
        return (
            seconds_of(partial(self.collector.collect, self.rollout), ACT_SECONDS) / self.rollout.num_samples
        )

    def prepare_learning(self) -> int:
        """Be a learner of what was collected last; returns the size of a microbatch."""
        import numpy as np

        assert self.process is not None
        self.env.close()
        self.rollout.scaled_rewards[:] = self.rollout.rewards
        wanted = max(1, 2 * self.process.microbatch_size // self.config.training.n_steps)
        self.columns = np.arange(min(self.rollout.num_envs, wanted))
        return self.process.microbatch_size

    def learn(self) -> float:
        """Seconds to learn from a timestep."""
        from rlcb.rl import impala

        process, rollout, columns = self.process, self.rollout, self.columns
        assert process is not None

        def update(number: int) -> None:
            impala.update(process.learner, rollout, self.config, number, columns)

        return seconds_of(update, LEARN_SECONDS) / (len(columns) * rollout.n_steps)


def seconds_of(work: Callable[[int], Any], duration: float) -> float:
    """Seconds of one call of `work(n)`, n = 0, 1, ..., the mean over as many as fit; the first is not
    counted."""
    work(0)
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - start < duration:
        calls += 1
        work(calls)
    return (time.perf_counter() - start) / calls
