"""What follows from a configuration: a node's part of a minibatch, whether a run caches activations, and
cores that it leaves without work."""

from __future__ import annotations

from rlcb.config.config import Config, largest_divisor
from rlcb.cpu import usable_memory

PASSES_SHARE = 0.25  # of the memory: the largest default size of the activation cache


def with_shard_of_minibatch(config: Config, workers: int) -> Config:
    """Return the configuration with which a node of so many workers learns: if nodes learn by themselves,
    with its part of a minibatch."""
    batch_size = config.training.batch_size
    if config.cluster.average_every is None or batch_size is None:
        return config
    training = config.training.model_copy(update={"batch_size": batch_size * workers // config.num_processes})
    return config.model_copy(update={"training": training})


def caches_activations(config: Config, sample_bytes: int) -> bool:
    """Whether a run caches the activations of acting, with `sample_bytes` per sample (0: it has none)."""
    if not config.traits.caches_activations or not sample_bytes:
        return False
    if config.hardware.keep_acting_passes is not None:
        return config.hardware.keep_acting_passes
    samples = config.training.n_steps * config.envs_per_node
    return samples * sample_bytes <= PASSES_SHARE * usable_memory()


def cores_without_work(config: Config, cores: int, num_threads: int) -> int:
    """Return how many of a machine's cores have no worker of a parallel run because its environments cannot
    make more workers; 0 if fewer workers were chosen, or if the run has actors."""
    workers = config.num_processes
    makes_no_more = workers == largest_divisor(config.env.num_envs, cores)
    is_affected = config.mode == "parallel" and not config.has_actors and makes_no_more
    return max(0, cores - workers * num_threads) if is_affected else 0
