"""Calculations with a profile: how long a timestep takes, and how many timesteps per second are possible.

Each docstring has the formula. Times are measured; nothing here measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rlcb.config.config import Config
from rlcb.config.derived import caches_activations
from rlcb.machine.profile import NetworkSpeed, Profile, describe_env, env_key, resolved_model


class NotMeasured(Exception):
    """A measurement is missing in the profile. The message continues `the profile ...`."""


class Times(NamedTuple):
    """Seconds of one process for one timestep."""

    env: float
    forward: float
    """0 if the run learns from the activations cached while acting."""
    learn: float
    """Forward and backward passes of all epochs."""

    @property
    def total(self) -> float:
        return self.env + self.forward + self.learn

    @property
    def parts(self) -> dict[str, float]:
        """Each part's share of the total."""
        return {name: seconds / self.total for name, seconds in self._asdict().items()}


def seconds_by_size(
    speeds: Iterable[NetworkSpeed], threads: int, precision: str, layout: str = "channels_last"
) -> dict[int, float]:
    """Return {samples in a pass: seconds per sample}, by size. Raises NotMeasured."""
    found = {
        each.size: each.seconds
        for each in speeds
        if (each.threads, each.layout, each.precision) == (threads, layout, precision)
    }
    if not found:
        raise NotMeasured(f"has no measurement with {threads} threads in a process")
    return dict(sorted(found.items()))


def forward_seconds(profile: Profile, threads: int) -> dict[int, float]:
    """`seconds_by_size` of the policy's forward pass."""
    return seconds_by_size(profile.forward, threads, profile.precision)


def learn_seconds(profile: Profile, threads: int) -> dict[int, float]:
    """`seconds_by_size` of the learner's forward and backward pass."""
    return seconds_by_size(profile.forward_backward, threads, profile.precision)


def cached_seconds(profile: Profile, threads: int) -> dict[int, float]:
    """`seconds_by_size` of acting and learning together, with cached activations."""
    return seconds_by_size(profile.act_and_learn, threads, profile.precision)


def thread_counts(profile: Profile) -> list[int]:
    """Return the numbers of threads per process that were measured."""
    return sorted({each.threads for each in profile.forward})


def env_seconds(profile: Profile, config: Config, threads: int) -> float:
    """Return the seconds of one process for one step of one environment. Raises NotMeasured."""
    wanted = env_key(config.env)
    found = {each.threads: each.seconds for each in profile.environments if each.key == wanted}
    if not found:
        known = dict.fromkeys(describe_env(each.key) for each in profile.environments)
        raise NotMeasured(f"has measured {', '.join(known)}, not {describe_env(wanted)}")
    if threads not in found:
        raise NotMeasured(f"has no measurement with {threads} threads in a process")
    return found[threads]


def interpolate(seconds: Mapping[int, float], size: int) -> float:
    """Return the seconds per sample at `size` samples, given {measured size: seconds per sample}.

    Between two sizes, linear in log(size). Above the largest size, its value. Below the smallest size, a pass
    takes as long as a pass of the smallest size.
    """
    sizes = sorted(seconds)
    if size <= sizes[0]:
        return seconds[sizes[0]] * sizes[0] / size
    if size >= sizes[-1]:
        return seconds[sizes[-1]]
    above = next(index for index, each in enumerate(sizes) if each >= size)
    low, high = sizes[above - 1], sizes[above]
    fraction = math.log(size / low) / math.log(high / low)
    return seconds[low] + fraction * (seconds[high] - seconds[low])


def best_times(profile: Profile, config: Config, threads: int) -> Times:
    """Return the least time that a process with `threads` threads needs for a timestep of a run.

    Acting uses the fastest measured size up to the run's number of environments, also where it shares its
    pass with learning. Otherwise learning uses the fastest microbatch. Raises NotMeasured.
    """
    env, num_envs = env_seconds(profile, config, threads), config.env.num_envs

    def fastest(seconds: Mapping[int, float]) -> float:
        possible = [each for size, each in seconds.items() if size <= num_envs]
        return min(possible, default=seconds[min(seconds)])

    if caches_activations(config, profile.network.activation_bytes):
        return Times(env, 0.0, fastest(cached_seconds(profile, threads)))
    learn = config.training.n_epochs * min(learn_seconds(profile, threads).values())
    return Times(env, fastest(forward_seconds(profile, threads)), learn)


def machine_limit(profile: Profile, config: Config) -> float:
    """Return the timesteps per second of cores that never idle.

    cores / (t_env + t_forward + epochs * t_forward_backward), measured with one thread per process while all
    cores are busy. t_forward is left out if the run learns from cached activations.
    """
    return profile.cores / best_times(profile, config, 1).total


def limit(profile: Profile, config: Config, threads: int) -> float:
    """Return the timesteps per second that a run cannot exceed.

    A sequential run is limited by its one process with `threads` threads, other runs by the whole machine.
    """
    if config.mode == "sequential":
        return 1 / best_times(profile, config, threads).total
    return machine_limit(profile, config)


def mismatch_with_run(profile: Profile, config: Config) -> str | None:
    """Return why a profile does not hold for a run, or None. The text continues `the profile ...`."""
    if config.mode == "distributed":
        return "is of one machine; the run is distributed"
    is_image = len(profile.network.observation_shape) == 3
    if resolved_model(config.model, is_image) != resolved_model(profile.network.model, is_image):
        return f"was made for another network ({describe_model(profile)})"
    try:
        env_seconds(profile, config, 1)
    except NotMeasured as reason:
        return str(reason)
    return None


def describe_model(profile: Profile) -> str:
    """`nature, 342,448 parameters, float32`."""
    return f"{profile.network.name}, {profile.network.parameters:,} parameters, {profile.precision}"


def reduce_seconds(profile: Profile, processes: int) -> float:
    """Return the seconds of an all-reduce of the gradient, linear between measured numbers of processes."""
    size = 4 * profile.network.parameters
    known = {1: 0.0} | {each.processes: each.seconds for each in profile.reduce if each.bytes >= size}
    if processes > 1 and len(known) == 1:
        raise NotMeasured("has no sums over several processes")
    low = max(each for each in known if each <= processes)
    high = min((each for each in known if each >= processes), default=low)
    if low == high:
        return known[low]
    return known[low] + (known[high] - known[low]) * (processes - low) / (high - low)


def samples_per_process(config: Config, processes: int) -> int:
    """Return how many samples of a minibatch each of `processes` learns from."""
    size = config.training.n_steps * config.env.num_envs
    if config.algorithm == "ppo":
        size = min(size, config.training.batch_size or size)
    return max(1, size // processes)


def samples_per_pass(config: Config, microbatch: int, samples: int) -> int:
    """Return how many of a process's `samples` go through the network at once.

    IMPALA's microbatches consist of whole columns of a rollout.
    """
    if config.algorithm == "impala":
        steps = config.training.n_steps
        microbatch = max(1, microbatch // steps) * steps
    return min(microbatch, samples)


def fastest_microbatch(profile: Profile, config: Config, threads: int, processes: int) -> tuple[int, float]:
    """Return the fastest measured microbatch size and its seconds per sample, forward and backward.

    The processes share a minibatch. Among sizes that lead to the same passes, the result is the size of those
    passes, or else the smallest.
    """
    seconds = learn_seconds(profile, threads)
    samples = samples_per_process(config, processes)
    actual = {size: samples_per_pass(config, size, samples) for size in seconds}
    cost = {size: interpolate(seconds, actual[size]) for size in seconds}
    best = min(seconds, key=lambda size: (cost[size], size != actual[size], size))
    return best, cost[best]


def data_parallel_fps(profile: Profile, config: Config, workers: int, threads: int) -> tuple[float, int]:
    """Return the predicted timesteps per second and the microbatch size of workers that act and learn.

    1 / ((t_env + t_forward + epochs * t_forward_backward) / workers + t_reduce * optimizer steps / timesteps
    of an update), with times at the sizes that each worker has. A3C needs no all-reduce. Raises NotMeasured.
    """
    envs_per_worker = config.env.num_envs // workers
    microbatch, learn = fastest_microbatch(profile, config, threads, workers)
    env = env_seconds(profile, config, threads)
    if caches_activations(config, profile.network.activation_bytes):
        times = Times(env, 0.0, interpolate(cached_seconds(profile, threads), envs_per_worker))
    else:
        forward = interpolate(forward_seconds(profile, threads), envs_per_worker)
        times = Times(env, forward, config.training.n_epochs * learn)
    reduce = 0.0
    if config.algorithm != "a3c":
        timesteps, optimizer_steps = config.timesteps_per_update, 1
        if config.algorithm == "ppo":
            minibatches = math.ceil(timesteps / (config.training.batch_size or timesteps))
            optimizer_steps = config.training.n_epochs * minibatches
        reduce = optimizer_steps * reduce_seconds(profile, workers) / timesteps
    return 1 / (times.total / workers + reduce), microbatch
