"""Choose the numbers of actors and learners of an IMPALA run by a measurement of a few seconds before it.

One process for each core acts and then learns as the run will, all at the same time, so the times are those
of a busy machine. The run gets the split with the highest predicted speed. In a distributed run the first
node measures, and every node has these numbers.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
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
ACT_SECONDS, LEARN_SECONDS = 0.5, 1.5
PASSES = 2  # over the sizes of actors; the faster one counts, so a short disturbance does not
START_SECONDS = 120.0  # for all of it
CROWDED = 0.05  # share by which more actors than cores must be faster; smaller differences are noise
MAX_SIZES = 3  # numbers of environments per actor that are measured


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
    """The predicted speed of one node with these numbers."""
    limit: float
    """The timesteps per second of one node whose cores never idle."""
    chosen: Sequence[str] = ()
    """The settings that the measurement decided, of KEYS. Older runs did not record them."""

    def describe(self) -> str:
        """Return the measured times, the numbers and the predicted speed in words."""
        act = ", ".join(f"{1e3 * each:.3f} with {n}" for n, each in sorted(self.act_seconds.items()))
        return (
            f"a timestep takes a core {1e3 * self.learn_seconds:.3f} ms to learn from and to act {act} "
            f"environments: {counted(self.num_actors, 'actor')}, {counted(self.num_learners, 'learner')}, "
            f"about {self.timesteps_per_second:,.0f} timesteps/s"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the record and for checkpoints."""
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any] | None) -> Calibration | None:
        """Return what `to_dict` was called on; None for None."""
        return None if data is None else Calibration(**data)


def candidates(config: Config, cores: int) -> list[int]:
    """Return the numbers of actors to measure, largest first: divisors of the number of environments, at most
    one above the number of cores."""
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
    """Return the split with the highest predicted speed; of equal ones, the one with the fewest processes.

    With more processes than cores, actors yield to learners: both sides work in turns, each on as many cores
    as it has processes. More learners than microbatches would gain nothing. A split with more actors than
    cores must be faster by CROWDED.
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
    fps, chosen = predicted(actors, learners), [key for key in KEYS if getattr(config.impala, key) is None]
    return Calibration(cores, act_seconds, learn_seconds, actors, learners, fps, busy, chosen)


def calibrate(config: Config, check_stop: Callable[[], None]) -> tuple[Config, Calibration]:
    """Measure, and return the configuration with the chosen numbers of actors and learners.

    `check_stop` is called while waiting; what it raises ends the measurement. Raises UsageError if the
    environments cannot be made.
    """
    cores = cpu.usable_cores()
    sizes = [config.envs_per_node // actors for actors in candidates(config, cores)]
    act: dict[int, float] = {}
    tuned = config.hardware.tune_allocator
    advice = "; with impala.num_actors and impala.num_learners nothing has to be measured"
    with Measurers(
        cores, f"{__name__}:ActorBench", (config,), check_stop, tuned, START_SECONDS, advice
    ) as measurers:
        for size in PASSES * sizes:
            measurers.ask("begin", size)
            act[size] = min(act.get(size, math.inf), statistics.fmean(measurers.ask("act")))
        microbatch_size, *_ = measurers.ask("prepare_learning")
        learn = statistics.fmean(measurers.ask("learn"))
    chosen = fastest_split(config, cores, act, learn, microbatch_size)
    data = config.model_dump()
    data["impala"] |= {"num_actors": chosen.num_actors, "num_learners": chosen.num_learners}
    return build_config(data, "calibration"), chosen


def with_split_of(config: Config, before: Config) -> Config:
    """Return the configuration of a resumed run; numbers of actors and learners that it does not set are
    those that the run had `before`."""
    if not config.has_actors:
        return config
    data = config.model_dump()
    for key in KEYS:
        if data["impala"][key] is None:
            data["impala"][key] = getattr(before.impala, key)
    return build_config(data, "the run that goes on")


class ActorBench:
    """Acts and learns as the run will, in one of the processes that measure."""

    def __init__(self, import_seconds: float, config: Config) -> None:
        cpu.set_torch_threads(1)
        self.config = config
        self.process: LearningProcess | None = None
        self.env: Any = None

    def begin(self, size: int) -> None:
        """Make `size` environments and collect a first rollout."""
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
        collector = Collector(self.env, process.model, seed, 0, process.timer, lambda: None)
        self.collect = partial(collector.collect, self.rollout, last_values=False)
        self.collect(0)

    def act(self) -> float:
        """Return the seconds that a timestep takes to collect."""
        return seconds_of(self.collect, ACT_SECONDS) / self.rollout.num_samples

    def prepare_learning(self) -> int:
        """Close the environments and keep the last rollout to learn from; return the microbatch size."""
        import numpy as np

        assert self.process is not None
        self.env.close()
        self.rollout.scaled_rewards[:] = self.rollout.rewards
        wanted = max(1, 2 * self.process.microbatch_size // self.config.training.n_steps)
        self.columns = np.arange(min(self.rollout.num_envs, wanted))
        return self.process.microbatch_size

    def learn(self) -> float:
        """Return the seconds that a timestep takes to learn from."""
        from rlcb.rl import impala

        process, rollout, columns = self.process, self.rollout, self.columns
        assert process is not None

        def update(number: int) -> None:
            impala.update(process.learner, rollout, self.config, number, columns)

        return seconds_of(update, LEARN_SECONDS) / (len(columns) * rollout.n_steps)


def seconds_of(work: Callable[[int], Any], duration: float) -> float:
    """Return the mean seconds of a call of `work(n)`, n = 1, 2, ..., over about `duration` seconds, after one
    call that warms up."""
    work(0)
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - start < duration:
        calls += 1
        work(calls)
    return (time.perf_counter() - start) / calls
