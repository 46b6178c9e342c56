"""Steps per second of the native batched Procgen environment, compared with single ones through Shimmy.

    venv/bin/python -m perf.env_speed

The bar: at least 4 times the steps of 32 Shimmy environments in gymnasium's SyncVectorEnv, made as Procgen's
constructor makes them. Without native threads of their own such single environments lose less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from perf.measure import interleave, rate, save, table
from rlcb import cpu
from rlcb.config.settings import EnvConfig
from rlcb.envs.vector_env import make_vector_env
from rlcb.seeding import group_seed

STEPS = 20


def native(game: str, num_envs: int, group_size: int, num_threads: int) -> Callable[[], float]:
    """Return a function that measures the steps per second of this project's environment."""
    groups = [group_seed(0, group) for group in range(num_envs // group_size)]
    env = make_vector_env(EnvConfig(id=game, num_levels=200), groups, group_size, num_threads)
    return stepper(env, num_envs)


def through_shimmy(game: str, num_envs: int, num_threads: int) -> Callable[[], float]:
    """Return the same for single environments, each behind Shimmy, in a SyncVectorEnv."""
    import gym3
    from procgen import ProcgenGym3Env
    from shimmy import GymV21CompatibilityV0

    def make() -> Any:
        options = {"num_levels": 200, "distribution_mode": "easy", "num_threads": num_threads}
        env = ProcgenGym3Env(num=1, env_name=game, **options)
        return GymV21CompatibilityV0(env=gym3.ToGymEnv(gym3.ExtractDictObWrapper(env, key="rgb")))

    return stepper(gymnasium.vector.SyncVectorEnv([make] * num_envs), num_envs)


def stepper(env: gymnasium.vector.VectorEnv, num_envs: int) -> Callable[[], float]:
    env.reset()
    actions = np.random.default_rng(0).integers(0, 15, (STEPS, num_envs))

    def work() -> None:
        for row in actions:
            env.step(row)

    work()
    return lambda: rate(work, STEPS * num_envs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--game", default="coinrun")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    cores = cpu.usable_cores()
    base = "32 through Shimmy in SyncVectorEnv, Procgen's default of 4 threads"
    alternatives = {
        base: through_shimmy(arguments.game, 32, 4),
        "32 through Shimmy in SyncVectorEnv, no extra thread": through_shimmy(arguments.game, 32, 0),
    }
    for num_envs in (32, 64):
        for threads in sorted({0, 1} if cores > 1 else {0}):
            name = f"native, {num_envs} environments, " + (
                "a thread a group" if threads else "no extra thread"
            )
            alternatives[name] = native(arguments.game, num_envs, 8, threads)
    comparison = interleave(alternatives, arguments.rounds)
    title = f"Environment steps per second, {arguments.game}, groups of 8, {arguments.rounds} rounds in turn"
    save(
        "env_speed",
        f"{title}\n\n{table(comparison, base, 'steps/s', 'the first')}",
        {"rates": comparison.rates},
    )


if __name__ == "__main__":
    main()
