"""What follows from a profile: how long a timestep takes, and how many there can be in a second.

Everything here is calculated from measured times; docstrings have the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rlcb.config.config import Config, caches_activations
from rlcb.machine.profile import NetworkSpeed, Profile, describe_env, env_key, resolved_model


class NotMeasured(Exception):
    """The profile does not have what is asked for; the message continues `the profile ...`."""


class Times(NamedTuple):
    """Seconds that one process takes for a timestep."""

    env: float
    forward: float
    """0 where learning uses the same pass."""
    learn: float
    """Forward and backward passes of all epochs."""

    @property
    def total(self) -> float:
        return self.env + self.forward + self.learn

    @property
    def parts(self) -> dict[str, float]:
        """Share of each."""
        return {name: seconds / self.total for name, seconds in self._asdict().items()}


def passes(
    speeds: Iterable[NetworkSpeed], threads: int, precision: str, layout: str = "channels_last"
) -> dict[int, float]:
    """Samples at once -> seconds a sample. Raises NotMeasured."""
    found = {
        each.size: each.seconds
        for each in speeds
        if (each.threads, each.layout, each.precision) == (threads, layout, precision)
    }
    if not found:
        raise NotMeasured(f"has no measurement with {threads} threads in a process")
    return dict(sorted(found.items()))


def acting(profile: Profile, threads: int) -> dict[int, float]:
    """`passes` forward, as the profile's runs make them."""
    return passes(profile.forward, threads, profile.precision)


def learning(profile: Profile, threads: int) -> dict[int, float]:
    """`passes` forward and backward."""
    return passes(profile.forward_backward, threads, profile.precision)


def keeps_passes(profile: Profile, config: Config) -> bool:
    """Whether a run learns from the passes with which it acts."""
    return caches_activations(config, profile.network.activation_bytes)


def acting_and_learning(profile: Profile, threads: int) -> dict[int, float]:
    """`passes` forward and backward of runs that keep those of acting."""
    return passes(profile.act_and_learn, threads, profile.precision)


def thread_counts(profile: Profile) -> list[int]:
    """Threads of a process that were measured."""
    return sorted({each.threads for each in profile.forward})


def env_seconds(profile: Profile, config: Config, threads: int) -> float:
    """Seconds of a process for a step of one environment of a run. Raises NotMeasured."""
    wanted = env_key(config.env)
    mine = {each.threads: each.seconds for each in profile.environments if each.key == wanted}
    if not mine:
        known = dict.fromkeys(describe_env(each.key) for each in profile.environments)
        raise NotMeasured(f"has measured {', '.join(known)}, not {describe_env(wanted)}")
    if threads not in mine:
        raise NotMeasured(f"has no measurement with {threads} threads in a process")
    return mine[threads]


def at_size(seconds: Mapping[int, float], size: int) -> float:
    """Seconds a sample at `size` samples at once, from those measured at other sizes, {size: seconds}.

    Between two sizes linear in the logarithm of the size; above the largest as there; below the smallest a
    whole pass is taken to last as long as one of the smallest size.
    """
    sizes = sorted(seconds)
    if size <= sizes[0]:
        return seconds[sizes[0]] * sizes[0] / size
    if size >= sizes[-1]:
        return seconds[sizes[-1]]
    above = next(index for index, each in enumerate(sizes) if each >= size)
    low, high = sizes[above - 1], sizes[above]
    share = math.log(size / low) / math.log(high / low)
    return seconds[low] + share * (seconds[high] - seconds[low])


def best_times(profile: Profile, config: Config, threads: int) -> Times:
    """The least that a process of so many threads needs for a timestep of a run.

    The forward pass is the fastest with at most as many environments as the run has, and so are both where
    they are one; else the forward and backward pass is the fastest of any microbatch. Raises NotMeasured.
    """
    env, most = env_seconds(profile, config, threads), config.env.num_envs
    if keeps_passes(profile, config):
        return Times(env, 0.0, fastest(acting_and_learning(profile, threads), most))
    learn = min(learning(profile, threads).values())
    return Times(env, fastest(acting(profile, threads), most), config.training.n_epochs * learn)


def fastest(seconds: Mapping[int, float], most: int) -> float:
    """Seconds a sample at the best of the measured sizes up to `most`, or at the smallest one."""
    possible = [each for size, each in seconds.items() if size <= most]
    return min(possible, default=seconds[min(seconds)])


def machine_limit(profile: Profile, config: Config) -> float:
    """Timesteps a second of cores that never idle: cores / (t_env + t_forward + epochs * t_forward_backward),
    each time measured with one thread and all cores busy; without t_forward where that is the same pass."""
    return profile.cores / best_times(profile, config, 1).total


def limit(profile: Profile, config: Config, threads: int) -> float:
    """Timesteps a second that a run cannot pass: a sequential one has one process of so many threads, whose
    measured times count; other runs have the whole machine."""
    if config.mode == "sequential":
        return 1 / best_times(profile, config, threads).total
    return machine_limit(profile, config)


def why_not_for(profile: Profile, config: Config) -> str | None:
    """Why a profile does not hold for a run; None if it does. The sentence continues `the profile ...`."""
    if config.mode == "distributed":
        return "is of one machine; the run is distributed"
    model = resolved_model(config.model, len(profile.network.observation_shape) == 3)
    if model != resolved_model(profile.network.model, len(profile.network.observation_shape) == 3):
        return f"was made for another network ({describe_model(profile)})"
    try:
        env_seconds(profile, config, 1)
    except NotMeasured as reason:
        return str(reason)
    return None


def describe_model(profile: Profile) -> str:
    network = profile.network
    return f"{network.name}, {network.parameters:,} parameters, {profile.precision}"


def reduce_seconds(profile: Profile, processes: int) -> float:
    """Seconds to sum a gradient over processes; between two measured numbers of them linear."""
    if processes == 1:
        return 0.0
    size = 4 * profile.network.parameters
    known = {1: 0.0} | {each.processes: each.seconds for each in profile.reduce if each.bytes >= size}
    if len(known) == 1:
        raise NotMeasured("has no sums over several processes")
    low = max(each for each in known if each <= processes)
    high = min((each for each in known if each >= processes), default=low)
    if low == high:
        return known[low]
    return known[low] + (known[high] - known[low]) * (processes - low) / (high - low)


def optimizer_steps(config: Config) -> int:
    """Steps of the optimizer in an update."""
    if config.algorithm != "ppo":
        return 1
    size = config.timesteps_per_update
    return config.training.n_epochs * math.ceil(size / (config.training.batch_size or size))


def share_of_minibatch(config: Config, processes: int) -> int:
    """Samples of a minibatch that each of `processes` learns from; a worker of A3C learns alone."""
    size = config.training.n_steps * config.env.num_envs
    if config.algorithm == "ppo":
        size = min(size, config.training.batch_size or size)
    return max(1, size // processes)


def microbatch_samples(config: Config, microbatch: int, share: int) -> int:
    """Samples that go through the network at once; IMPALA's microbatches are whole columns of a rollout."""
    if config.algorithm == "impala":
        steps = config.training.n_steps
        microbatch = max(1, microbatch // steps) * steps
    return min(microbatch, share)


def fastest_microbatch(profile: Profile, config: Config, threads: int, processes: int) -> tuple[int, float]:
    """(microbatch size, seconds a sample for a forward and backward pass) of the fastest measured size, for
    processes that share a minibatch; of sizes that come to the same, the one that says what is done."""
    seconds = learning(profile, threads)
    share = share_of_minibatch(config, processes)
    samples = {size: microbatch_samples(config, size, share) for size in seconds}
    cost = {size: at_size(seconds, samples[size]) for size in seconds}
    best = min(seconds, key=lambda size: (cost[size], size != samples[size], size))
    return best, cost[best]


def data_parallel_fps(profile: Profile, config: Config, workers: int, threads: int) -> tuple[float, int]:
    """(timesteps a second, microbatch size) predicted for workers that step config's environments and learn.

    1 / ((t_env + t_forward + epochs * t_forward_backward) / workers + steps * t_reduce / timesteps of an
    update), with the times of the sizes that each worker has. Raises NotMeasured.
    """
    per_worker = config.env.num_envs // workers
    microbatch, learn = fastest_microbatch(profile, config, threads, workers)
    env = env_seconds(profile, config, threads)
    if keeps_passes(profile, config):
        times = Times(env, 0.0, at_size(acting_and_learning(profile, threads), per_worker))
    else:
        forward = at_size(acting(profile, threads), per_worker)
        times = Times(env, forward, config.training.n_epochs * learn)
    together = 0.0
    if config.algorithm != "a3c":
        steps = optimizer_steps(config)
        together = steps * reduce_seconds(profile, workers) / (config.training.n_steps * config.env.num_envs)
    return 1 / (times.total / workers + together), microbatch
