"""Whether runs learn the same with native kernels (rlcb/kernels) and with PyTorch's: five seeds, two games.

    venv/bin/python -m perf.kernels_learning [--networks nature impala] [--games starpilot] [--seeds 5]

Sequential PPO, equal timesteps, one thread. A run's value is the mean over the second half of its
timesteps of the training return (itself a mean over the last 100 episodes). Welch's t-test compares the
values of a game, with Holm's method for the games of a network, and their mean over games. The smallest
difference that the test would have found four times out of five says what an equal result is worth. Runs
stay in --runs: the command continues where it stopped, and other programs may use the machine meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from perf.measure import save
from perf.training_runs import Result, is_complete, read, train_in
from rlcb.comparison.statistics import Welch, detectable_difference, holm, welch, welch_over_games

TIMESTEPS = {"nature": 100_000, "impala": 30_000}
KERNELS = ("native", "torch")
Values = Mapping[str, Mapping[str, Sequence[float]]]
"""Values of the runs: game -> kernels -> one value for each seed."""


def train(runs: Path, network: str, game: str, seed: int, kernels: str) -> Result:
    """Train, unless the folder has the completed run, and return the results."""
    folder = runs / network / kernels / f"{game}_{seed}"
    if is_complete(folder):
        result = read(folder)
    else:
        flags = ("--env", game, "--seed", seed, "--num-envs", 32, "--num-threads", 1, "--overwrite")
        settings = (f"model.architecture={network}", f"hardware.kernels={kernels}")
        budget = ("--total-timesteps", TIMESTEPS[network])
        result = train_in(folder, "train_ppo_sequential.py", (*flags, *budget), settings)
    used = result.record["hardware"]["kernels"]
    if used != kernels:
        raise SystemExit(f"{folder} was trained with {used} kernels")
    return result


def value_of(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean training return over the second half of the timesteps."""
    half = rows[-1]["timesteps"] / 2
    return statistics.fmean(row["rollout/ep_reward_mean"] for row in rows if row["timesteps"] > half)


def describe(network: str, values: Values) -> str:
    """Return the table of a network: means, differences and the test of each game and of their mean."""
    tests: list[Welch | None] = [welch(each["native"], each["torch"]) for each in values.values()]
    adjusted = holm([None if test is None else test.p for test in tests])
    lines = [
        f"### {network}, {TIMESTEPS[network]:,} timesteps",
        "",
        "| game | native | PyTorch | difference | p | detectable |",
        "|---|---|---|---|---|---|",
    ]
    for (game, each), test, p in zip(values.items(), tests, adjusted, strict=True):
        lines.append(_row(game, *(f"{_mean(each[kernels])}" for kernels in KERNELS), test, p, len(tests)))
    if len(values) > 1:
        strata = [np.array(each[kernels]) for each in values.values() for kernels in KERNELS]
        means = [
            statistics.fmean(statistics.fmean(each[kernels]) for each in values.values())
            for kernels in KERNELS
        ]
        test = welch_over_games(strata)
        lines.append(_row("mean of the games", *(f"{mean:.2f}" for mean in means), test, test and test.p, 1))
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f} (standard deviation {statistics.stdev(values):.2f})"


def _row(game: str, native: str, other: str, test: Welch | None, p: float | None, tests: int) -> str:
    """Return a row of the table; `p` is adjusted for `tests` tests."""
    if test is None or p is None:
        return f"| {game} | {native} | {other} | no test is possible | | |"
    detectable = detectable_difference(test.error, test.degrees, tests)
    interval = f"{test.difference:+.2f} [{test.low:+.2f}, {test.high:+.2f}]"
    return f"| {game} | {native} | {other} | {interval} | {p:.2f} | {detectable:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", choices=tuple(TIMESTEPS), default=tuple(TIMESTEPS))
    parser.add_argument("--games", nargs="+", default=["starpilot", "coinrun"])
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1, 2, ... (default: 5)")
    parser.add_argument("--runs", type=Path, default=Path("benchmarks/kernels_learning"), metavar="DIR")
    arguments = parser.parse_args()
    seeds = range(1, arguments.seeds + 1)
    todo = [
        (network, game, kernels, seed)
        for network in arguments.networks
        for seed in seeds
        for game in arguments.games
        for kernels in KERNELS
    ]
    values: dict[str, dict[str, dict[str, list[float]]]] = {
        network: {game: {kernels: [] for kernels in KERNELS} for game in arguments.games}
        for network in arguments.networks
    }
    for network, game, kernels, seed in tqdm(todo, desc="runs", unit="run"):
        result = train(arguments.runs, network, game, seed, kernels)
        values[network][game][kernels].append(value_of(result.rows))
    heading = (
        f"Sequential PPO, 32 environments, {len(seeds)} seeds with native and with PyTorch's kernels: mean "
        "training return over the second half of the timesteps, Welch's 95 % interval of the difference, p "
        "adjusted by Holm's method, and the smallest true difference that the test detects four times out of "
        "five"
    )
    tables = [describe(network, each) for network, each in values.items()]
    save("kernels_learning", "\n\n".join([heading, *tables]), {"values": values})


if __name__ == "__main__":
    main()
