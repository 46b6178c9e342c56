"""What a profile recommends for a run, and what holds the run up, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlcb.config.config import Config
from rlcb.errors import UsageError
from rlcb.machine.limits import (
    Times,
    acting,
    at_size,
    best_times,
    data_parallel_fps,
    env_seconds,
    fastest_microbatch,
    limit,
    machine_limit,
    thread_counts,
)
from rlcb.machine.profile import Profile, Reached, Result, Setup
from rlcb.parallel.calibration import candidates, fastest_split

ENVS_TOLERANCE = 0.10  # what other environments than the configuration's must bring: they change learning
SAME = 0.005  # predictions closer than this are equal: then fewer processes are better
LOSS = 0.03  # share of a run's time from which on a loss is worth a word


def recommend(profile: Profile, config: Config, keep_envs: bool = False) -> Setup:
    """The setup that is predicted to be fastest for a run of this algorithm, mode and size.

    The number of environments is the configuration's, unless another one brings more than ENVS_TOLERANCE or
    the configuration's cannot be divided; with `keep_envs` it stays in any case. Raises NotMeasured, and
    UsageError if there is no possible setup.
    """
    found = list(actor_setups(profile, config) if config.has_actors else worker_setups(profile, config))
    if keep_envs:
        found = [each for each in found if each.num_envs == config.env.num_envs]
    if not found:
        raise UsageError(
            f"no number of processes divides env.num_envs = {config.env.num_envs} in groups of "
            f"env.group_size = {config.env.group_size}"
        )
    enough = (1 - ENVS_TOLERANCE) * max(each.predicted_fps for each in found)
    fewest = min(each.num_envs for each in found if each.predicted_fps >= enough)
    possible = [each for each in found if each.num_envs == fewest]
    fastest = max(each.predicted_fps for each in possible)
    possible = [each for each in possible if each.predicted_fps >= (1 - SAME) * fastest]
    return min(possible, key=lambda each: (each.processes + (each.learners or 0), -each.predicted_fps))


def with_envs(config: Config, num_envs: int) -> Config:
    """The same run with other environments. What else this would need is not checked."""
    return config.model_copy(update={"env": config.env.model_copy(update={"num_envs": num_envs})})


def environment_counts(config: Config, processes: int, largest: int) -> Iterator[int]:
    """Numbers of environments in all for `processes`: the configuration's, rounded up so that they divide it,
    and its doubles with at most `largest` for a process."""
    group = config.env.group_size or 1
    unit = processes * group
    count = -(-config.env.num_envs // unit) * unit
    yield count
    while 2 * count <= largest * processes:
        count *= 2
        yield count


def worker_setups(profile: Profile, config: Config) -> Iterator[Setup]:
    """Every setup of processes that step environments and learn, a sequential run's one process included."""
    for threads in thread_counts(profile):
        largest = max(acting(profile, threads))
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
    """The best split into actors and learners, for each number of environments."""
    free = config.impala.model_copy(update={"num_actors": None, "num_learners": None})
    config = config.model_copy(update={"impala": free})
    forward = acting(profile, 1)
    env = env_seconds(profile, config, 1)
    for count in environment_counts(config, 1, max(forward) * profile.cores):
        sized = with_envs(config, count)
        microbatch, learn = fastest_microbatch(profile, sized, 1, 1)
        sizes = [count // actors for actors in candidates(sized, profile.cores)]
        act = {size: env + at_size(forward, size) for size in sizes}
        split = fastest_split(sized, profile.cores, act, learn, microbatch)
        yield Setup(
            processes=split.num_actors,
            learners=split.num_learners,
            threads=1,
            num_envs=count,
            microbatch_size=microbatch,
            predicted_fps=split.timesteps_per_second,
        )


def settings_of(setup: Setup, config: Config) -> dict[str, int]:
    """The settings, by dotted key, that tell a run of config's algorithm and mode about a setup."""
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
    threads = f"{setup.threads} thread{'' if setup.threads == 1 else 's'}"
    if config.has_actors:
        who = f"{_count(setup.processes, 'actor')}, {_count(setup.learners or 1, 'learner')}, {threads} each"
    elif config.mode == "parallel":
        who = f"{_count(setup.processes, 'worker')} of {threads}"
    else:
        who = f"1 process of {threads}"
    return f"{who}, {_count(setup.num_envs, 'environment')}, microbatches of {setup.microbatch_size}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


WORK = {
    "env": "stepping the environments",
    "forward": "the policy's forward passes",
    "learn": "learning: forward and backward passes",
}
ONE_PASS = "acting and learning, which share their forward passes"
LOSSES = {
    "sync": "summing gradients over the processes",
    "wait": "waiting for other processes",
    "other": "work around these (advantages, shuffling, logging)",
}


def bottleneck(times: Times, epochs: int, share: float | None, shares: Mapping[str, float]) -> str:
    """What takes the time at the limit, and what keeps a run from the limit.

    `share` is what the run reached of its limit, `shares` its time by phase; None and {} without a run.
    """
    (name, part), (following, rest) = sorted(times.parts.items(), key=lambda each: -each[1])[:2]
    what = f"{WORK[name]} of {epochs} epochs" if name == "learn" and epochs > 1 else WORK[name]
    what = ONE_PASS if name == "learn" and not times.forward else what
    text = f"{part:.0%} of the work is {what}; then {WORK[following].split(':')[0]}, {rest:.0%}"
    if share is None:
        return text
    lost = {key: shares.get(key, 0.0) for key in LOSSES if shares.get(key, 0.0) >= LOSS}
    if lost:
        listed = ", ".join(
            f"{value:.0%} {LOSSES[key]}" for key, value in sorted(lost.items(), key=lambda each: -each[1])
        )
        return f"{text}. Besides, the run spends {listed}"
    if share < 1 - 3 * LOSS:
        return f"{text}. In a run all of it takes {1 / share:.2f} times as long as measured by itself"
    return f"{text}. Nothing else takes {LOSS:.0%}"


def result_of(profile: Profile, config: Config, reached: Reached | None) -> Result:
    """What a profile says of config's algorithm and mode; `reached` is what a short run came to, if there was
    one. Raises UsageError if no setup is possible."""
    setup = recommend(profile, config)
    ran = setup if reached is None else reached.setup
    sized = with_envs(config, ran.num_envs)
    threads = ran.threads if config.mode == "sequential" else 1
    most, times = limit(profile, sized, threads), best_times(profile, sized, threads)
    share = None if reached is None else reached.fps / most
    epochs = config.training.n_epochs
    return Result(
        algorithm=config.algorithm,
        mode=config.mode,
        epochs=epochs,
        threads=threads,
        limit_fps=most,
        machine_limit_fps=machine_limit(profile, sized),
        parts=times.parts,
        setup=setup,
        reached=reached,
        share=share,
        bottleneck=bottleneck(times, epochs, share, {} if reached is None else reached.shares),
    )
