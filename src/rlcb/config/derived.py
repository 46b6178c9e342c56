"""What follows from a configuration: a node's part of a minibatch, and whether a run caches activations."""

from __future__ import annotations

from rlcb.config.config import Config
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
