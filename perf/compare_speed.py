"""Duration of compare_results.py for many long runs, with all outputs.

    venv/bin/python -m perf.compare_speed

The bar: 50 runs of 20,000 rows each in less than 10 seconds. The figures of the runs are made up; their files
are written as training writes them, into a temporary folder (about a gigabyte), and have been read once
before the first round.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from perf.measure import save
from perf.training_runs import environment
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config, dump_config, read_config_file
from rlcb.paths import PROJECT, default_config_path
from rlcb.rl.statistics import WINDOW
from rlcb.rl.timing import PHASES
from rlcb.training.metrics_writer import ROW_KEYS, write_rows
from rlcb.training.results import write_record
from rlcb.training.run_folder import RunFolder

VARIANTS = (
    *(("ppo", "sequential", 1500.0), ("ppo", "parallel", 1700.0), ("a2c", "sequential", 3400.0)),
    *(("impala", "sequential", 4200.0), ("impala", "parallel", 4400.0)),
)  # algorithm, mode, timesteps per second
GAMES = ("coinrun", "starpilot")
OUTPUTS = (
    *(".png", "_coinrun.png", "_starpilot.png", "_report.txt", ".md"),
    *(".csv", "_curves.csv", ".html", ".json"),
)


def write_runs(root: Path, rows: int, seeds: int) -> int:
    """Write `seeds` runs of every variant in every game; returns how many these are."""
    cells = [(*each, game, seed) for each in VARIANTS for game in GAMES for seed in range(1, seeds + 1)]
    for number, (algorithm, mode, fps, game, seed) in enumerate(cells, 1):
        data = read_config_file(default_config_path(algorithm, mode))
        data["env"]["id"] = game
        data["training"]["seed"] = seed
        if (algorithm, mode) == ("impala", "parallel"):  # what a calibration would have written
            data["impala"] |= {"num_actors": 2, "num_learners": 2}
        config = build_config(data, "perf.compare_speed")
        write_run(root / f"{algorithm}_{mode}_{game}_seed{seed}", config, fps, rows, number)
        print(f"\r  {number} of {len(cells)} runs written", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return len(cells)


def write_run(root: Path, config: Config, fps: float, count: int, stream: int) -> None:
    """Write the folder of a run with `count` rows; `stream` names its random numbers."""
    folder = RunFolder(root, config)
    folder.logs.mkdir(parents=True)
    folder.config_path.write_text(dump_config(config), encoding="utf-8")
    columns = made_up_columns(config.timesteps_per_update, fps, count, stream)
    names, values = list(columns), zip(*(column.tolist() for column in columns.values()))
    write_rows(folder.rows, (dict(zip(names, row)) for row in values))
    last = {name: column[-1].item() for name, column in columns.items()}
    reward, seconds = last["rollout/ep_reward_mean"], last["time/elapsed_seconds"]
    share = 1 / len(PHASES)
    figures: dict[str, Any] = {
        "start_time": "2026-01-01T00:00:00+00:00",
        "end_time": "2026-01-01T00:00:00+00:00",
        "duration_hours": seconds / 3600,
        "total_timesteps": last["timesteps"],
        "total_updates": count,
        "total_episodes": last["rollout/episodes"],
        "average_fps": last["time/fps_average"],
        "final_fps": last["time/fps"],
        "performance": {"initial_reward": 2.0, "final_reward": reward, "best_reward": reward + 0.5},
        "resource_usage": {
            "peak_memory_gb": 1.2,
            "average_memory_gb": 1.1,
            "average_cpu_percent": 97.0,
            "others_cpu_percent": 1.0,
        },
        "time_breakdown": {name: {"seconds": share * seconds, "share": share} for name in PHASES},
        "workers": [{"name": "worker 0", "threads": 2}],
    }
    write_record(folder, config, "completed", figures)


def made_up_columns(step: int, fps: float, count: int, stream: int) -> dict[str, Any]:
    """Every column of metrics.jsonl, (count,) each, with as many digits as real ones have."""
    random = np.random.default_rng(stream)
    updates = np.arange(1, count + 1)
    timesteps = step * updates
    seconds = np.cumsum(step / fps * random.uniform(0.9, 1.1, count)).round(4)
    known = {
        "timesteps": timesteps,
        "update": updates,
        "time/elapsed_seconds": seconds,
        "time/fps": fps * random.uniform(0.9, 1.1, count),
        "time/fps_average": timesteps / seconds,
        "rollout/ep_reward_mean": 2 + 6 * updates / (updates + count / 4) + random.normal(0, 0.3, count),
        "rollout/episodes": WINDOW + timesteps // 150,
    }
    return {key: known[key] if key in known else random.uniform(0, 1, count) for key in ROW_KEYS}


def compare(root: Path, output: Path) -> float:
    """Return the program's duration in seconds. Raises if it fails or does not write a file."""
    command = [
        sys.executable,
        str(PROJECT / "compare_results.py"),
        "--runs",
        str(root),
        "--output",
        str(output),
    ]
    started = time.perf_counter()
    subprocess.run(command, env=environment(), check=True, capture_output=True)
    seconds = time.perf_counter() - started
    for name in OUTPUTS:
        path = output.with_name(f"{output.stem}{name}")
        if not path.exists():
            raise FileNotFoundError(path)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=5, help="of each of 5 variants in 2 games")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        runs = write_runs(root, arguments.rows, arguments.seeds)
        output = Path(folder) / "comparison" / "comparison.png"
        compare(root, output)  # the first one reads the files from disk
        rounds = []
        for number in range(arguments.rounds):
            rounds.append(compare(root, output))
            print(f"  round {number + 1}/{arguments.rounds}  {rounds[-1]:.2f} s", flush=True)
    median = statistics.median(rounds)
    text = (
        f"compare_results.py for {runs} runs of {arguments.rows:,} rows each ({len(VARIANTS)} variants in "
        f"{len(GAMES)} games, {arguments.seeds} seeds), every output: {median:.1f} s, median of "
        f"{len(rounds)} rounds, {min(rounds):.1f} to {max(rounds):.1f}"
    )
    figures = {"runs": runs, "rows": arguments.rows, "seeds": arguments.seeds, "seconds": rounds}
    save("compare_speed", text, figures)


if __name__ == "__main__":
    main()
