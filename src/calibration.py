"""How many actors and learners suit this machine: measured in a few seconds before a run of IMPALA.

One process for each core acts and then learns as the run will, all at the same time, so that the figures are
those of a machine that is busy. The split that is predicted to be fastest is taken.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from src import cpu_utils
from src.config import Config
from src.config_file import build_config
from src.errors import RunError, UsageError

ACT_SECONDS, LEARN_SECONDS = 0.7, 1.5
START_SECONDS = 120.0
POLL_SECONDS = 0.1
MAX_SIZES = 3  # numbers of environments per actor that are tried


@dataclass(frozen=True)
class Calibration:
    """What was measured, on busy cores, and what follows."""

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
    """Timesteps per second of cores that never idle, acting with that many environments an actor."""

    def describe(self) -> str:
        act = ", ".join(f"{1e3 * each:.3f} with {n}" for n, each in sorted(self.act_seconds.items()))
        return (
            f"a timestep takes a core {1e3 * self.learn_seconds:.3f} ms to learn from and to act {act} "
            f"environments: {self.num_actors} actor(s), {self.num_learners} learner(s), "
            f"about {self.timesteps_per_second:,.0f} timesteps/s"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def candidates(config: Config, cores: int) -> list[int]:
    """Numbers of actors to try: those that divide the environments, around one a core, most first."""
    if config.impala.num_actors is not None:
        return [config.impala.num_actors]
    environments, size = config.env.num_envs, config.env.group_size or 1
    unroll = config.training.n_steps
    batch = config.training.batch_size or unroll * environments
    fitting = [
        actors
        for actors in range(1, min(environments, 2 * cores) + 1)
        if environments % actors == 0
        and environments // actors % size == 0
        and batch % (unroll * environments // actors) == 0
    ]
    fitting = fitting or [1]
    above = [actors for actors in fitting if actors > cores][:1]
    return (above + sorted((each for each in fitting if each <= cores), reverse=True))[:MAX_SIZES]


def fastest_split(
    config: Config, cores: int, act_seconds: dict[int, float], learn_seconds: float, microbatch_size: int
) -> Calibration:
    """The split that the measured times predict to be fastest; of equal ones that with the fewest processes.

    Where there are more processes than cores, actors yield to learners: both sides work in turns, each on as
    many cores as it has processes. Learners beyond one microbatch each would gain nothing.
    """
    most = max(1, min(cores, math.ceil(config.timesteps_per_update / microbatch_size)))
    learner_counts = [config.impala.num_learners] if config.impala.num_learners else range(1, most + 1)

    def predicted(actors: int, learners: int) -> float:
        act = act_seconds[config.env.num_envs // actors] / min(actors, cores)
        learn = learn_seconds / min(learners, cores)
        return 1 / (act + learn if actors + learners > cores else max(act, learn))

    splits = sorted(
        (config.env.num_envs // size, learners) for size in act_seconds for learners in learner_counts
    )
    actors, learners = max(splits, key=lambda split: round(predicted(*split), 6))
    busy = cores / (act_seconds[config.env.num_envs // actors] + learn_seconds)
    return Calibration(cores, act_seconds, learn_seconds, actors, learners, predicted(actors, learners), busy)


def calibrate(config: Config, check_stop: Callable[[], None]) -> tuple[Config, Calibration]:
    """Measure, and return the configuration with the number of actors and learners that follows.

    `check_stop` is called while waiting; what it raises ends the measurement. Raises UsageError if the
    environments cannot be made.
    """
    cores = cpu_utils.usable_cores()
    sizes = [config.env.num_envs // actors for actors in candidates(config, cores)]
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(cores)
    processes, connections = [], []
    try:
        for _ in range(cores):
            ours, theirs = context.Pipe()
            process = context.Process(target=measure, args=(config, sizes, barrier, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            connections.append(ours)
        results = collect(connections, check_stop)
    finally:
        for process in processes:
            process.kill()
            process.join()
    act = {size: sum(each[0][size] for each in results) / cores for size in sizes}
    learn = sum(each[1] for each in results) / cores
    chosen = fastest_split(config, cores, act, learn, results[0][2])
    data = config.model_dump()
    data["impala"] |= {"num_actors": chosen.num_actors, "num_learners": chosen.num_learners}
    return build_config(data, "calibration"), chosen


def collect(connections: list[Connection], check_stop: Callable[[], None]) -> list[Any]:
    """What every measuring process has found."""
    results: dict[int, Any] = {}
    deadline = time.monotonic() + START_SECONDS
    while len(results) < len(connections):
        check_stop()
        if time.monotonic() > deadline:
            raise RunError(f"the calibration took longer than {START_SECONDS:g} s; set impala.num_actors")
        waiting = [each for index, each in enumerate(connections) if index not in results]
        for connection in wait(waiting, timeout=POLL_SECONDS):
            assert isinstance(connection, Connection)
            try:
                kind, content = connection.recv()
            except EOFError:
                raise RunError("a process of the calibration died; set impala.num_actors") from None
            if kind == "usage":
                raise UsageError(content)
            if kind == "fault":
                raise RunError(f"calibration: {content}")
            results[connections.index(connection)] = content
    return [results[index] for index in range(len(connections))]


def measure(config: Config, sizes: list[int], barrier: Any, connection: Connection) -> None:
    """In a process of its own: seconds of a timestep to act by environments, to learn, microbatch size."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the process that started this one decides
    try:
        if config.hardware.tune_allocator:
            cpu_utils.tune_allocator()
        cpu_utils.set_thread_environment(1)
        connection.send(("measured", time_work(config, sizes, lambda: barrier.wait(START_SECONDS))))
    except UsageError as error:
        connection.send(("usage", str(error)))
    except Exception as error:
        connection.send(("fault", f"{type(error).__name__}: {error}"))


def time_work(
    config: Config, sizes: list[int], together: Callable[[], Any]
) -> tuple[dict[int, float], float, int]:
    """`together` is called before each measurement and waits for the other processes."""
    import numpy as np

    from src.buffer import RolloutBuffer
    from src.collector import Collector
    from src.config import MAX_GROUP_SIZE, largest_divisor
    from src.distributed import Communicator
    from src.envs import make_vector_env, spaces_of
    from src.learning_process import LearningProcess
    from src.seeding import group_seed
    from src.timing import PhaseTimer

    cpu_utils.set_torch_threads(1)
    act, process, rollout = {}, None, None
    for size in sizes:
        group = config.env.group_size or largest_divisor(size, MAX_GROUP_SIZE)
        seeds = [group_seed(config.training.seed, each) for each in range(size // group)]
        env = make_vector_env(config.env, seeds, group, 0)
        spaces = spaces_of(env)
        process = process or LearningProcess(config, Communicator(), 1, lambda: None, PhaseTimer(), spaces)
        rollout = RolloutBuffer(config.training.n_steps, size, spaces)
        collector = Collector(env, process.model, config.training.seed, 0, process.timer, lambda: None)
        collector.collect(rollout, 0)
        together()
        act[size] = seconds_of(partial(collector.collect, rollout), ACT_SECONDS) / rollout.num_samples
        env.close()
    assert process is not None and rollout is not None
    rollout.scaled_rewards[:] = rollout.rewards
    wanted = max(1, 2 * process.microbatch_size // config.training.n_steps)
    columns = np.arange(min(rollout.num_envs, wanted))
    together()
    learn = seconds_of(
        lambda n: process.algorithm.update(process.learner, rollout, config, n, columns), LEARN_SECONDS
    )
    return act, learn / (len(columns) * config.training.n_steps), process.microbatch_size


def seconds_of(work: Callable[[int], Any], duration: float) -> float:
    """Seconds of one call of `work(n)`, n = 0, 1, ..., the mean over as many as fit; the first is not
    counted."""
    work(0)
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - start < duration:
        calls += 1
        work(calls)
    return (time.perf_counter() - start) / calls
