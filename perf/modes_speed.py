"""Timesteps per second of whole training runs in different modes.

    venv/bin/python -m perf.modes_speed                      # every case
    venv/bin/python -m perf.modes_speed --cases ppo-nature-32x128 --rounds 3

Each run is the real script on coinrun; its rate is that of the updates after the first one. Sequential runs
use a thread for each core, parallel ones a worker of one thread for each core, `pinned` is one thread on one
core.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from perf.measure import Comparison, interleave, save, table
from perf.training_runs import train
from rlcb import cpu

CORES = cpu.usable_cores()


@dataclass(frozen=True)
class Case:
    """One workload, in the modes that it compares; the first mode is the base of the ratios."""

    algorithm: str
    network: str
    num_envs: int
    n_steps: int
    modes: tuple[str, ...]
    updates: int
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.algorithm}-{self.network}-{self.num_envs}x{self.n_steps}"


PPO_MODES = ("sequential", "parallel", "pinned")
PPO = ("training.batch_size=1024", "training.n_epochs=1")
CASES = (
    Case("ppo", "impala", 32, 128, PPO_MODES, 3, PPO),
    Case("ppo", "nature", 32, 128, PPO_MODES, 5, PPO),
    Case("ppo", "impala", 64, 256, ("sequential", "parallel"), 2, PPO),
    Case("ppo", "nature", 64, 256, PPO_MODES, 3, PPO),
    Case("a2c", "impala", 32, 16, ("sequential", "parallel", "a3c"), 12),
    Case("a2c", "nature", 32, 16, ("sequential", "parallel", "a3c"), 40),
    Case("impala", "impala", 32, 32, PPO_MODES, 10),
    Case("impala", "nature", 32, 32, PPO_MODES, 60),
)


def run(case: Case, mode: str, record: dict[str, list[dict[str, Any]]]) -> float:
    """Train once and return timesteps per second; `record` stores further measurements of each round."""
    algorithm = "a3c" if mode == "a3c" else case.algorithm
    kind = "sequential" if mode in ("sequential", "pinned") else "parallel"
    flags = (
        *("--num-envs", case.num_envs, "--n-steps", case.n_steps),
        *("--total-timesteps", case.num_envs * case.n_steps * case.updates),
        *("--num-threads", CORES if mode == "sequential" else 1),
        *(("--num-workers", CORES) if kind == "parallel" and algorithm != "impala" else ()),
    )
    settings = (f"model.architecture={case.network}", *case.settings)
    core = 0 if mode == "pinned" else None
    result = train(f"train.py --algorithm {algorithm} --mode {kind}", flags, settings, core)
    detail: dict[str, Any] = {"peak_memory_mb": result.peak_memory_mb, "shares": result.shares}
    if "impala" in result.record:
        detail["impala"] = result.record["impala"]
    record.setdefault(mode, []).append(detail)
    return result.fps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES])
    arguments = parser.parse_args()
    texts, data = [], {}
    for case in CASES:
        if arguments.cases and case.name not in arguments.cases:
            continue
        print(case.name, flush=True)
        details: dict[str, list[dict[str, Any]]] = {}
        comparison = interleave(
            {mode: partial(run, case, mode, details) for mode in case.modes}, arguments.rounds
        )
        texts.append(describe(case, comparison, details))
        data[case.name] = {"rates": comparison.rates, "details": details}
    title = f"Timesteps per second of whole runs on coinrun, {CORES} cores, {arguments.rounds} rounds in turn"
    name = "modes_speed" if not arguments.cases else "modes_speed_" + "_".join(arguments.cases)
    save(name, "\n\n".join([title, *texts]), data)


def describe(case: Case, comparison: Comparison, details: dict[str, list[dict[str, Any]]]) -> str:
    lines = [f"### {case.name}", "", table(comparison, case.modes[0], "timesteps/s"), ""]
    for mode, rounds in details.items():
        peak = statistics.median(each["peak_memory_mb"] for each in rounds)
        shares = {
            name: statistics.median(each["shares"][name] for each in rounds) for name in rounds[0]["shares"]
        }
        text = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        lines.append(f"- {mode}: peak {peak:,.0f} MB; {text}")
        calibrations = [each.get("impala", {}).get("calibration") for each in rounds]
        if None not in calibrations:
            lines += describe_limits(mode, comparison.rates[mode], calibrations)
    return "\n".join(lines)


def describe_limits(
    mode: str, rates: Sequence[float], calibrations: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the share of cores / (t_act + t_learn) that IMPALA reached.

    Each round is compared with what its calibration had measured just before: once with the time to act of
    the chosen split, and once with the shortest time for any number of environments, the limit that no split
    can beat.
    """
    splits = dict.fromkeys(f"{each['num_actors']} and {each['num_learners']}" for each in calibrations)
    limits = {
        "the t_act of the chosen split": [each["limit"] for each in calibrations],
        "the shortest t_act": [
            each["cores"] / (min(each["act_seconds"].values()) + each["learn_seconds"])
            for each in calibrations
        ],
    }
    lines = [f"- {mode}: actors and learners {', '.join(splits)}"]
    for name, values in limits.items():
        shares = [rate / limit for rate, limit in zip(rates, values, strict=True)]
        lines.append(
            f"- {mode}: {statistics.median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%}) of the "
            f"limit cores / (t_act + t_learn) with {name}, {statistics.median(values):,.0f} timesteps/s"
        )
    return lines


if __name__ == "__main__":
    main()
