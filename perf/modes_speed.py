"""Timesteps per second of whole training runs, mode against mode, in turn.

    venv/bin/python -m perf.modes_speed                      # every case
    venv/bin/python -m perf.modes_speed --cases ppo-nature-32x128 --rounds 3

Each run is the real script on coinrun; its rate is that of the updates after the first one. Sequential runs
use a thread for each core, parallel ones a worker of one thread for each core, `pinned` is one thread on one
core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from perf.measure import Comparison, interleave, save, table
from src import cpu_utils

PROJECT = Path(__file__).resolve().parent.parent
CORES = cpu_utils.usable_cores()


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
    Case("ppo", "nature", 32, 128, PPO_MODES, 6, PPO),
    Case("ppo", "impala", 64, 256, PPO_MODES, 2, PPO),
    Case("ppo", "nature", 64, 256, PPO_MODES, 3, PPO),
    Case("a2c", "impala", 32, 16, ("sequential", "parallel", "a3c"), 12),
    Case("a2c", "nature", 32, 16, ("sequential", "parallel", "a3c"), 40),
)


def run(case: Case, mode: str, record: dict[str, Any]) -> float:
    """Train once and return timesteps per second after the first update; `record` keeps what else is of
    interest."""
    algorithm = "a3c" if mode == "a3c" else case.algorithm
    kind = "sequential" if mode in ("sequential", "pinned") else "parallel"
    workers = CORES if kind == "parallel" else 1
    with tempfile.TemporaryDirectory() as folder:
        words = [
            *(["taskset", "-c", "0"] if mode == "pinned" else []),
            *(sys.executable, str(PROJECT / f"train_{algorithm}_{kind}.py"), "--output-dir", folder),
            *("--num-envs", str(case.num_envs), "--n-steps", str(case.n_steps)),
            *("--total-timesteps", str(case.num_envs * case.n_steps * case.updates)),
            *("--num-threads", str(CORES if mode == "sequential" else 1)),
        ]
        for setting in (
            f"model.architecture={case.network}",
            f"parallel.num_workers={workers}",
            "logging.tensorboard=false",
            *case.settings,
        ):
            words += ["--set", setting]
        environment = {key: os.environ[key] for key in os.environ if key not in cpu_utils.THREAD_VARIABLES}
        subprocess.run(words, env=environment, check=True, capture_output=True)
        (path,) = Path(folder).glob("logs/*/metrics.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        summary = json.loads((Path(folder) / "benchmark_metrics.json").read_text())
    record[mode] = {
        "peak_memory_gb": summary["resource_usage"]["peak_memory_gb"],
        "time_breakdown": {name: part["share"] for name, part in summary["time_breakdown"].items()},
    }
    first, last = rows[0], rows[-1]
    seconds = last["time/elapsed_seconds"] - first["time/elapsed_seconds"]
    return float((last["timesteps"] - first["timesteps"]) / seconds)


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
        details: dict[str, Any] = {}
        comparison = interleave(
            {mode: partial(run, case, mode, details) for mode in case.modes}, arguments.rounds
        )
        texts.append(describe(case, comparison, details))
        data[case.name] = {"rates": comparison.rates, "details": details}
    title = f"Timesteps per second of whole runs on coinrun, {CORES} cores, {arguments.rounds} rounds in turn"
    name = "modes_speed" if not arguments.cases else "modes_speed_" + "_".join(arguments.cases)
    save(name, "\n\n".join([title, *texts]), data)


def describe(case: Case, comparison: Comparison, details: dict[str, Any]) -> str:
    lines = [f"### {case.name}", "", table(comparison, case.modes[0], "timesteps/s"), ""]
    for mode, detail in details.items():
        shares = ", ".join(f"{name} {share:.1%}" for name, share in detail["time_breakdown"].items())
        lines.append(f"- {mode}: peak {detail['peak_memory_gb'] * 1024:,.0f} MB; {shares}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
