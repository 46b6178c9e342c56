"""Random streams: each use of random numbers has its own stream, derived from the run's seed.

A stream's key does not depend on the number of processes or on earlier draws. So all modes draw the same
numbers, and a resumed run continues exactly where it stopped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# The first component of a key. Keys of environment groups have one component, as SeedSequence.spawn makes.
_ACTIONS, _MINIBATCHES, _RESTART, _EVALUATION, _EVALUATION_ACTIONS = 1, 2, 3, 4, 5


def group_seed(seed: int, group: int) -> np.random.SeedSequence:
    """Return the seed of environment group `group`: child number `group` of SeedSequence(seed).spawn."""
    return np.random.SeedSequence(seed, spawn_key=(group,))


def restart_seed(seed: int, group: int, update: int) -> np.random.SeedSequence:
    """Return the seed of a group whose environments restart in a run that is resumed at `update`."""
    return np.random.SeedSequence(seed, spawn_key=(_RESTART, update, group))


def evaluation_seed(seed: int, group: int, split: int) -> np.random.SeedSequence:
    """Return the seed of an environment group of an evaluation. No stream of training has the same key."""
    return np.random.SeedSequence(seed, spawn_key=(_EVALUATION, split, group))


def evaluation_actions(seed: int, split: int, env: int) -> np.random.Generator:
    """Return the generator of action noise for one environment of an evaluation."""
    key = np.random.SeedSequence(seed, spawn_key=(_EVALUATION_ACTIONS, split, env))
    return np.random.Generator(np.random.SFC64(key))


def environment_seeds(group: np.random.SeedSequence, count: int) -> list[int]:
    """Return `count` seeds of 31 bits, the range of Procgen and Gymnasium, from a group's seed."""
    return [int(word) >> 1 for word in group.generate_state(count, np.uint32)]


def action_noise(seed: int, update: int, first_env: int, num_envs: int, n_steps: int) -> NDArray[np.float64]:
    """Return uniform numbers (n_steps, num_envs) in [0, 1) for sampling actions.

    Column i is the stream of environment first_env + i.
    """
    noise = np.empty((n_steps, num_envs))
    for i in range(num_envs):
        key = np.random.SeedSequence(seed, spawn_key=(_ACTIONS, update, first_env + i))
        noise[:, i] = np.random.Generator(np.random.SFC64(key)).random(n_steps)
    return noise


def minibatch_permutation(seed: int, update: int, epoch: int, num_samples: int) -> NDArray[np.int64]:
    """Return the order (num_samples,) int64 in which an epoch visits a rollout's samples.

    It is equal in all processes.
    """
    key = np.random.SeedSequence(seed, spawn_key=(_MINIBATCHES, update, epoch))
    return np.random.Generator(np.random.SFC64(key)).permutation(num_samples)
