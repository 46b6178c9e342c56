"""The recommendation for a run and its bottleneck, calculated from a profile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rlcb.config.config import Config
from rlcb.errors import UsageError
from rlcb.machine.limits import (
    Times,
    best_times,
    data_parallel_fps,
    env_seconds,
    fastest_microbatch,
    forward_seconds,
    interpolate,
    limit,
    machine_limit,
    thread_counts,
)
from rlcb.machine.profile import Profile, Result, Setup, ShortRun
from rlcb.parallel.calibration import candidates, fastest_split
from rlcb.text import counted

AlgorithmMode = tuple[str, str]
"""An algorithm and a mode."""

ENVS_TOLERANCE = 0.10  # gain that justifies another number of environments, which changes learning
SAME = 0.005  # predictions closer than this are equal; then fewer processes are better
LOSS = 0.03  # smallest share of a run's time that is reported as a loss
WORK = {
    "env": "stepping the environments",
    "forward": "the policy's forward passes",
    "learn": "learning: forward and backward passes",
}
ONE_PASS = "acting and learning, which share their forward passes"
LOSSES = {
    "sync": "summing gradients over the processes",
    "wait": "waiting for other processes",
    "other": "other work (advantages, shuffling, logging)",
}


def recommend(profile: Profile, config: Config, keep_envs: bool = False) -> Setup:
    """Return the setup that is predicted to be fastest for a run of this algorithm, mode and size.

    The number of environments is the configuration's, unless another one gains more than ENVS_TOLERANCE or
    the configuration's number cannot be divided. `keep_envs` keeps the configuration's number in any case.
    Raises NotMeasured, and UsageError if there is no possible setup.
    """
    setups = list(actor_setups(profile, config) if config.has_actors else worker_setups(profile, config))
    if keep_envs:
        setups = [each for each in setups if each.num_envs == config.env.num_envs]
    if not setups:
        raise UsageError(
            f"no number of processes divides env.num_envs = {config.env.num_envs} in groups of "
            f"env.group_size = {config.env.group_size}"
        )
    enough = (1 - ENVS_TOLERANCE) * max(each.predicted_fps for each in setups)
    fewest = min(each.num_envs for each in setups if each.predicted_fps >= enough)
    setups = [each for each in setups if each.num_envs == fewest]
    fastest = max(each.predicted_fps for each in setups)
    setups = [each for each in setups if each.predicted_fps >= (1 - SAME) * fastest]
    return min(setups, key=lambda each: (each.processes + (each.learners or 0), -each.predicted_fps))


def with_envs(config: Config, num_envs: int) -> Config:
    """Return the configuration with another number of environments, without validating it again."""
    return config.model_copy(update={"env": config.env.model_copy(update={"num_envs": num_envs})})


def environment_counts(config: Config, processes: int, largest: int) -> Iterator[int]:
    """Yield the total numbers of environments to consider.

    First the configuration's, rounded up to a multiple of processes and of the group size, then its doubles
    up to `largest` environments per process.
    """
    unit = math.lcm(processes, config.env.group_size or 1)
    count = -(-config.env.num_envs // unit) * unit
    yield count
    while 2 * count <= largest * processes:
        count *= 2
        yield count


def worker_setups(profile: Profile, config: Config) -> Iterator[Setup]:
    """Yield every setup of processes that act and learn, including the one process of sequential runs."""
    for threads in thread_counts(profile):
        largest = max(forward_seconds(profile, threads))
        most = 1 if config.mode == "sequential" else max(1, profile.cores // threads)
        for workers in range(1, most + 1):
            for count in environment_counts(config, workers, largest):
                fps, microbatch = data_parallel_fps(profile, with_envs(config, count), workers, threads)
                yield Setup(
                    processes=workers,
                    learners=None,
                    threads=threads,
                    num_envs=count,
                    microbatch_size=microbatch,
                    predicted_fps=fps,
                )


def actor_setups(profile: Profile, config: Config) -> Iterator[Setup]:
    """Yield the best split into IMPALA actors and learners for each number of environments."""
    split_free = config.impala.model_copy(update={"num_actors": None, "num_learners": None})
    config = config.model_copy(update={"impala": split_free})
    forward, env = forward_seconds(profile, 1), env_seconds(profile, config, 1)
    for count in environment_counts(config, 1, max(forward) * profile.cores):
        sized = with_envs(config, count)
        microbatch, learn = fastest_microbatch(profile, sized, 1, 1)
        sizes = [count // actors for actors in candidates(sized, profile.cores)]
        act = {size: env + interpolate(forward, size) for size in sizes}
        split = fastest_split(sized, profile.cores, act, learn, microbatch)
        yield Setup(
            processes=split.num_actors,
            learners=split.num_learners,
            threads=1,
            num_envs=count,
            microbatch_size=microbatch,
            predicted_fps=split.timesteps_per_second,
        )


def setup_settings(setup: Setup, config: Config) -> dict[str, int]:
    """Return the settings, by dotted key, that give a run of config's algorithm and mode this setup."""
    settings = {"env.num_envs": setup.num_envs}
    if config.has_actors:
        settings |= {"impala.num_actors": setup.processes, "impala.num_learners": setup.learners or 1}
    elif config.mode == "parallel":
        settings["parallel.num_workers"] = setup.processes
    return settings | {
        "hardware.num_threads": setup.threads,
        "hardware.microbatch_size": setup.microbatch_size,
    }


def describe_setup(setup: Setup, config: Config) -> str:
    """`2 workers of 1 thread, 32 environments, microbatches of 128`."""
    threads = counted(setup.threads, "thread")
    if config.has_actors:
        actors, learners = counted(setup.processes, "actor"), counted(setup.learners or 1, "learner")
        processes = f"{actors}, {learners}, {threads} each"
    else:
        noun = "worker" if config.mode == "parallel" else "process"
        processes = f"{counted(setup.processes, noun)} of {threads}"
    return f"{processes}, {counted(setup.num_envs, 'environment')}, microbatches of {setup.microbatch_size}"


def bottleneck(times: Times, epochs: int, share: float | None, shares: Mapping[str, float]) -> str:
    """Return a sentence on what takes the time at the limit and what keeps a run below the limit.

    `share` is the short run's speed divided by the limit, `shares` its time by phase; None and {} without a
    short run.
    """
    (name, part), (second, second_part) = sorted(times.parts.items(), key=lambda each: -each[1])[:2]
    work = WORK[name]
    if name == "learn":
        work = ONE_PASS if not times.forward else f"{work} of {epochs} epochs" if epochs > 1 else work
    text = f"{part:.0%} of the work is {work}; then {WORK[second].split(':')[0]}, {second_part:.0%}"
    if share is None:
        return text
    losses = sorted(((shares.get(key, 0.0), words) for key, words in LOSSES.items()), reverse=True)
    listed = [f"{value:.0%} {words}" for value, words in losses if value >= LOSS]
    if listed:
        return f"{text}. Besides, the run spends {', '.join(listed)}"
    if share < 1 - 3 * LOSS:
        return f"{text}. In a run, this work takes {1 / share:.2f} times as long as measured on its own"
    return f"{text}. Nothing else takes {LOSS:.0%}"


def sized_for(config: Config, setup: Setup) -> tuple[Config, int]:
    """Return the configuration with a setup's environments, and the threads per process that its limit
    assumes."""
    return with_envs(config, setup.num_envs), setup.threads if config.mode == "sequential" else 1


def with_limits(reached: ShortRun, profile: Profile, config: Config) -> ShortRun:
    """Return a short run with its limits by `profile`, which has what was measured around it."""
    sized, threads = sized_for(config, reached.setup)
    limits = {
        "limit_fps": limit(profile, sized, threads),
        "machine_limit_fps": machine_limit(profile, sized),
    }
    return reached.model_copy(update=limits)


def result_of(profile: Profile, config: Config, reached: ShortRun | None) -> Result:
    """Return the result for config's algorithm and mode; `reached` is the short run, if there was one.

    Raises UsageError if no setup is possible.
    """
    setup = recommend(profile, config)
    sized, threads = sized_for(config, setup if reached is None else reached.setup)
    limit_fps, machine_limit_fps = limit(profile, sized, threads), machine_limit(profile, sized)
    if reached is not None:
        limit_fps = reached.limit_fps or limit_fps
        machine_limit_fps = reached.machine_limit_fps or machine_limit_fps
    times = best_times(profile, sized, threads)
    share = None if reached is None else reached.fps / limit_fps
    epochs = config.training.n_epochs
    return Result(
        algorithm=config.algorithm,
        mode=config.mode,
        epochs=epochs,
        threads=threads,
        limit_fps=limit_fps,
        machine_limit_fps=machine_limit_fps,
        parts=times.parts,
        setup=setup,
        reached=reached,
        share=share,
        bottleneck=bottleneck(times, epochs, share, {} if reached is None else reached.shares),
    )
