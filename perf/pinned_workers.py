"""Timesteps per second with and without hardware.pin_workers: a worker on each core, runs in turn.

venv/bin/python -m perf.pinned_workers [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

from perf.measure import interleave, save, table
from rlcb.cpu import usable_cores
from tests import runs

FREE = "not pinned"
WAYS = {FREE: "false", "pinned": "true"}
UPDATES, WARM = 6, 2
CASES = {
    "PPO, Nature CNN, 32 x 64": ("ppo", 64, ("--batch-size", 512, "--n-epochs", 2)),
    "A2C, Nature CNN, 32 x 64": ("a2c", 64, ()),
}


def measure(algorithm: str, n_steps: int, flags: tuple[object, ...], pin: str) -> float:
    """Return timesteps per second, the median over updates."""
    with tempfile.TemporaryDirectory() as folder:
        result = runs.run(
            f"train.py --algorithm {algorithm} --mode parallel", "--env", "coinrun", "--num-envs", 32,
            "--n-steps", n_steps, "--num-workers", usable_cores(), "--set", "model.architecture=nature",
            "--set", f"hardware.pin_workers={pin}", "--set", "logging.tensorboard=false",
            "--total-timesteps", 32 * n_steps * UPDATES, "--output-dir", Path(folder) / "run", *flags,
        )  # fmt: skip
        if result.returncode or "not pinned" in result.stderr:
            raise SystemExit(result.stderr)
        return statistics.median(row["time/fps"] for row in runs.rows(Path(folder) / "run")[WARM:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    texts = [f"Parallel runs with a worker on each of {usable_cores()} cores, {rounds} rounds in turn"]
    data = {}
    for name, case in CASES.items():
        comparison = interleave({way: partial(measure, *case, pin) for way, pin in WAYS.items()}, rounds)
        texts.append(f"{name}\n\n{table(comparison, FREE, 'timesteps/s')}")
        data[name] = comparison.rates
    save("pinned_workers", "\n\n".join(texts), {"rates": data})


if __name__ == "__main__":
    main()
