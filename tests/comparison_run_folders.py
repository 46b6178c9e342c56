"""Run folders for the tests of comparisons, written file by file as a training script leaves them."""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlcb.comparison.analysis import Comparison, Options, compare
from rlcb.comparison.groups import group_runs
from rlcb.comparison.lost import LostRun
from rlcb.comparison.runs import load_run
from rlcb.comparison.statistics import Bootstrap

CONFIG: dict[str, Any] = {
    "env": {
        "id": "procgen-coinrun-v0",
        "num_envs": 64,
        "group_size": None,
        "distribution_mode": "easy",
        "num_levels": 200,
        "start_level": 0,
        "procgen": {"center_agent": True, "use_backgrounds": True},
        "kwargs": {},
    },
    "model": {
        "architecture": "impala",
        "impala_channels": [16, 32, 32],
        "hidden_size": 256,
        "mlp_sizes": [64, 64],
    },
    "training": {
        "seed": 1,
        "total_timesteps": None,
        "duration_hours": 0.5,
        "n_steps": 256,
        "batch_size": 2048,
        "n_epochs": 3,
        "learning_rate": 0.0005,
        "gamma": 0.999,
        "gae_lambda": 0.95,
        "ent_coef": 0.01,
        "clip_range": 0.2,
        "clip_value_loss": False,
    },
    "impala": {"num_actors": None, "num_learners": None, "max_policy_lag": 2},
    "parallel": {"num_workers": 1, "timeout_seconds": 120.0, "buffer_dir": None},
    "hardware": {"device": "cpu", "num_threads": None},
    "logging": {"log_interval": 1, "checkpoint_dir": None, "log_dir": None},
}
HARDWARE: dict[str, Any] = {
    "cpu_model": "Test CPU",
    "physical_cores": 2,
    "logical_cpus": 2,
    "usable_cores": 2,
    "ram_gb": 16.0,
    "platform": "Linux-test",
    "load_average": 1.9,
    "threads": [2],
}
SOFTWARE = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "numpy": "1.26.4",
    "procgen": "0.10.7",
    "gymnasium": "1.4.0",
}


def row(timesteps: int, seconds: float, reward: float | None, **changes: Any) -> dict[str, Any]:
    """A row of metrics.jsonl with every key that the trainer writes."""
    return {
        "timesteps": timesteps,
        "update": 1,
        "time/elapsed_seconds": seconds,
        "time/fps": 100.0,
        "time/fps_average": timesteps / seconds,
        "rollout/ep_reward_mean": reward,
        "rollout/ep_reward_std": None if reward is None else 4.0,
        "rollout/ep_length_mean": None if reward is None else 150.0,
        "rollout/episodes": 500 + timesteps // 150,
        "train/policy_loss": -0.01,
        "train/value_loss": 0.1,
        "train/entropy": 2.5,
        "train/approx_kl": 0.001,
        "train/clip_fraction": 0.1,
        "train/explained_variance": 0.5,
        "train/learning_rate": 0.0005,
        "train/grad_norm": 0.3,
        "train/epochs": 3,
        "profile/env_seconds": 0.1,
        "profile/inference_seconds": 0.2,
        "profile/learn_seconds": 0.6,
        "profile/sync_seconds": 0.0,
        "profile/wait_seconds": 0.0,
        "system/memory_gb": 1.5,
        "system/cpu_percent": 90.0,
        **changes,
    }


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with dotted keys set."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        *sections, last = key.split(".")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
        target[last] = value
    return result


def write_run(
    root: Path,
    rows: Sequence[dict[str, Any]],
    algorithm: str = "ppo",
    mode: str = "sequential",
    env: str = "procgen-coinrun-v0",
    seed: int = 1,
    settings: dict[str, Any] | None = None,
    record: dict[str, Any] | None = None,
    status: str = "completed",
) -> Path:
    """Write a whole run folder and return it. `settings` and `record` have dotted keys to change; figures of
    the record come from the rows unless they are given."""
    config = merged(CONFIG, {"env.id": env, "training.seed": seed, **(settings or {})})
    config = {"algorithm": algorithm, "mode": mode, **config}
    logs = root / "logs" / f"{algorithm.upper()}_{mode.capitalize()}"
    logs.mkdir(parents=True)
    (logs / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (root / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    last = rows[-1] if rows else row(0, 1.0, None)
    rewards = [each["rollout/ep_reward_mean"] for each in rows if each["rollout/ep_reward_mean"] is not None]
    content = {
        "schema_version": 1,
        "status": status,
        "algorithm": algorithm,
        "training_mode": mode,
        "env": env,
        "seed": seed,
        "start_time": "2026-01-01T00:00:00+00:00",
        "end_time": "2026-01-01T00:00:00+00:00",
        "duration_hours": last["time/elapsed_seconds"] / 3600,
        "total_timesteps": last["timesteps"],
        "total_updates": len(rows),
        "total_episodes": last["rollout/episodes"],
        "average_fps": last["timesteps"] / last["time/elapsed_seconds"],
        "final_fps": last["time/fps"],
        "performance": {
            "initial_reward": rewards[0] if rewards else None,
            "final_reward": rewards[-1] if rewards else None,
            "best_reward": max(rewards, default=None),
        },
        "resource_usage": {"peak_memory_gb": 1.6, "average_memory_gb": 1.5, "average_cpu_percent": 90.0},
        "time_breakdown": {
            "env": {"seconds": 10.0, "share": 0.1},
            "inference": {"seconds": 20.0, "share": 0.2},
            "learn": {"seconds": 60.0, "share": 0.6},
            "sync": {"seconds": 0.0, "share": 0.0},
            "wait": {"seconds": 0.0, "share": 0.0},
            "other": {"seconds": 10.0, "share": 0.1},
        },
        "workers": [],
        "hardware": HARDWARE,
        "software": {**SOFTWARE, "git_commit": "abc"},
        "config": config,
    }
    (root / "benchmark_metrics.json").write_text(json.dumps(merged(content, record or {})))
    return root


def line(
    start: float, end: float, timesteps: int, seconds: float, count: int = 11, **changes: Any
) -> list[dict[str, Any]]:
    """Rows along a straight line of returns: the first at one `count`-th of the run, the last at its end."""
    return [
        row(
            round(timesteps * i / count),
            seconds * i / count,
            start + (end - start) * (i - 1) / max(1, count - 1),
            **{"update": i, **changes},
        )
        for i in range(1, count + 1)
    ]


def curve(
    reward: Callable[[float], float], fps: float, seconds: float, count: int = 200, **changes: Any
) -> list[dict[str, Any]]:
    """Rows of a run that learns along `reward(timesteps)` at a constant speed."""
    return [
        row(int(fps * t), t, reward(fps * t), update=i, **{"time/fps": fps, **changes})
        for i in range(1, count + 1)
        for t in [seconds * i / count]
    ]


def episodes(rewards: Sequence[float], lengths: Sequence[int]) -> dict[str, Any]:
    """One split of an evaluation with these returns and lengths."""
    spread = statistics.stdev(rewards)
    summary = {"episodes": len(rewards), "mean_reward": statistics.fmean(rewards), "std_reward": spread}
    return {**summary, "rewards": list(rewards), "lengths": list(lengths)}


def evaluation(root: Path, train: float, test: float, name: str = "final_both.json", **changes: Any) -> Path:
    """Add an evaluation to a run folder."""
    record = json.loads((root / "benchmark_metrics.json").read_text())
    content = {
        "schema_version": 1,
        "start_time": "2026-01-01T01:00:00+00:00",
        "algorithm": record["algorithm"],
        "training_mode": record["training_mode"],
        "env": record["env"],
        "timesteps": record["total_timesteps"],
        "seed": 0,
        "deterministic": False,
        "episodes_per_split": 100,
        "max_episode_steps": 10000,
        "splits": {
            "train": {"episodes": 100, "mean_reward": train, "std_reward": 4.0},
            "test": {"episodes": 100, "mean_reward": test, "std_reward": 4.0},
        },
        "generalisation_gap": {"mean": train - test, "standard_error": 0.5},
        **changes,
    }
    path = root / "evaluation" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


class RunSet:
    """Runs in a folder, and their comparison."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths: list[Path] = []

    def add(self, *arguments: Any, **changes: Any) -> Path:
        """Write a run; see `write_run`."""
        self.paths.append(write_run(self.root / f"run{len(self.paths)}", *arguments, **changes))
        return self.paths[-1]

    def add_ends(self, ends: dict[str, list[float]], **changes: Any) -> None:
        """Write runs that stay at one return, by mode, with the seeds 0, 1, ..."""
        for mode, returns in ends.items():
            for seed, end in enumerate(returns):
                self.add(line(end, end, 1000, 100), mode=mode, seed=seed, **changes)

    def compare(self, lost: Sequence[LostRun] = (), **options: Any) -> Comparison:
        options.setdefault("bootstrap", Bootstrap(500, 1))
        return compare(group_runs([(0, load_run(path)) for path in self.paths]), Options(**options), lost)
