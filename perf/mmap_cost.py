"""Speed of training with the rollout in a memory-mapped file, compared with one in memory.

venv/bin/python -m perf.mmap_cost [--buffer-dir DIR]
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial

from perf.measure import interleave, save, table
from perf.training_runs import train

FLAGS = (
    *("--env", "coinrun", "--num-envs", 64, "--n-steps", 256, "--batch-size", 2048, "--n-epochs", 1),
    *("--total-timesteps", 3 * 64 * 256),
)


def run(settings: tuple[str, ...]) -> float:
    """Return the timesteps per second of a sequential run with the Nature network."""
    settings = ("model.architecture=nature", *settings)
    return train("train_ppo_sequential.py", FLAGS, settings).fps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--buffer-dir", default=tempfile.gettempdir())
    arguments = parser.parse_args()
    mapped = ("parallel.buffer=mmap", f"parallel.buffer_dir={arguments.buffer_dir}")
    comparison = interleave(
        {"in memory": partial(run, ()), "in a mapped file": partial(run, mapped)}, arguments.rounds
    )
    title = "Rollouts of 201 MB in memory and in a mapped file, PPO sequential, Nature network, 1 epoch"
    save(
        "mmap_cost",
        f"{title}\n\n{table(comparison, 'in memory', 'timesteps/s')}",
        {"rates": comparison.rates},
    )


if __name__ == "__main__":
    main()
