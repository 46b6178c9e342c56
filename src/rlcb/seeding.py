"""Random streams: every draw is keyed by the run's seed and by what it is for, so no two ever share a stream.

A key does not depend on the number of processes or on what was drawn before. So a run gives the same numbers
in every mode, and a resumed run goes on exactly where it stopped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# First component of a key. Environment groups use one-component keys, as SeedSequence.spawn does.
_ACTIONS, _MINIBATCHES, _RESTART, _EVALUATION, _EVALUATION_ACTIONS = 1, 2, 3, 4, 5


def group_seed(seed: int, group: int) -> np.random.SeedSequence:
    """The seed of environment group `group`: child number `group` of SeedSequence(seed).spawn."""
    return np.random.SeedSequence(seed, spawn_key=(group,))


def restart_seed(seed: int, group: int, update: int) -> np.random.SeedSequence:
    """The seed of a group whose environments begin anew in a run resumed at `update`."""
    return np.random.SeedSequence(seed, spawn_key=(_RESTART, update, group))


def evaluation_seed(seed: int, group: int, split: int) -> np.random.SeedSequence:
    """The seed of an environment group of the evaluator, apart from every stream of training."""
    return np.random.SeedSequence(seed, spawn_key=(_EVALUATION, split, group))


def evaluation_actions(seed: int, split: int, env: int) -> np.random.Generator:
    """The action noise of one environment of the evaluator."""
    key = np.random.SeedSequence(seed, spawn_key=(_EVALUATION_ACTIONS, split, env))
    return np.random.Generator(np.random.SFC64(key))


def environment_seeds(group: np.random.SeedSequence, count: int) -> list[int]:
    """`count` seeds of 31 bits (what Procgen and Gymnasium take) from a group's seed."""
    return [int(word) >> 1 for word in group.generate_state(count, np.uint32)]


def action_noise(seed: int, update: int, first_env: int, num_envs: int, n_steps: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), (n_steps, num_envs): column i belongs to environment first_env + i alone."""
    noise = np.empty((n_steps, num_envs))
    for i in range(num_envs):
        key = np.random.SeedSequence(seed, spawn_key=(_ACTIONS, update, first_env + i))
        noise[:, i] = np.random.Generator(np.random.SFC64(key)).random(n_steps)
    return noise


def minibatch_permutation(seed: int, update: int, epoch: int, num_samples: int) -> NDArray[np.int64]:
    """The order in which an epoch visits the samples of a rollout; equal in every process."""
    key = np.random.SeedSequence(seed, spawn_key=(_MINIBATCHES, update, epoch))
    return np.random.Generator(np.random.SFC64(key)).permutation(num_samples)
