"""A profile that is made up, with numbers that are easy to calculate with."""

from __future__ import annotations

import json
from typing import Any

from rlcb import cpu
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.cpu import cpu_flags, cpu_identity
from rlcb.machine.efficiency import installed_torch
from rlcb.machine.profile import Profile, Setup, ShortRun
from rlcb.profiling.advice import recommend, result_of

ENV = "procgen-coinrun-v0"


def passes(precision: str, times: dict[int, dict[int, float]], layout: str = "channels_last") -> list[Any]:
    """Threads -> samples at once -> milliseconds a sample."""
    return [
        {"size": size, "threads": threads, "layout": layout, "precision": precision, "seconds": each / 1e3}
        for threads, sizes in times.items()
        for size, each in sizes.items()
    ]


def profile(**changes: Any) -> Profile:
    """Of this process's machine if it had 2 cores; `changes` go over its fields."""
    data: dict[str, Any] = {
        "measured_at": "2030-01-02T03:04:05+00:00",
        "git_commit": "0123456789ab",
        "duration_seconds": 60.0,
        "host": "made-up",
        "cpu_percent_of_others": None,
        "machine": {
            "cpu_model": cpu.cpu_model(),
            "identity": cpu_identity(),
            "physical_cores": 2,
            "usable_cores": 2,
            "ram_gb": 8.0,
            "flags": list(cpu_flags()),
            "torch": installed_torch(),
            "peak_flops": 1e11,
            "peak_flops_bfloat16": None,
            "memory_bandwidth": 1e10,
            "cache_bandwidth": 1e11,
        },
        "network": {
            "model": {"architecture": "nature", "hidden_size": 256},
            "name": "nature",
            "observation_shape": [64, 64, 3],
            "num_actions": 15,
            "parameters": 1000,
            "forward_flops": 1e6,
            "forward_backward_flops": 3e6,
            "activation_bytes": 100_000,
        },
        "environments": [
            {
                "id": ENV,
                "distribution_mode": "easy",
                "options": {},
                "num_envs": 32,
                "threads": threads,
                "seconds": seconds,
                "measured_at": "2030-01-02T03:04:05+00:00",
            }
            for threads, seconds in ((1, 0.1e-3), (2, 0.08e-3))
        ],
        # One thread: 0.4 ms with 16, 0.3 with 32, 0.25 with 64 environments; 1.0 ms at best to learn.
        "forward": passes("float32", {1: {16: 0.4, 32: 0.3, 64: 0.25}, 2: {16: 0.3, 32: 0.22, 64: 0.2}}),
        "forward_backward": passes("float32", {1: {64: 1.1, 128: 1.0}, 2: {64: 0.8, 128: 0.7}}),
        # One thread: 1.4 ms with 16, 1.2 with 32, 1.1 with 64 environments for acting and learning in one.
        "act_and_learn": passes("float32", {1: {16: 1.4, 32: 1.2, 64: 1.1}, 2: {16: 1.0, 32: 0.9, 64: 0.85}}),
        "layers": [{"name": "conv", "flops": 1e6, "bytes": 1e5, "seconds": 2e-5}],
        "layers_size": 128,
        "reduce": [
            {"processes": 2, "bytes": 400, "seconds": 0.0001},
            {"processes": 2, "bytes": 4000, "seconds": 0.002},
        ],
        "startup": {"imports": 1.0, "environments": 0.5, "network": 0.1},
    }
    return Profile.model_validate_json(json.dumps(data | changes))


def setup(**changes: Any) -> Setup:
    values: dict[str, Any] = {
        "processes": 2,
        "learners": None,
        "threads": 1,
        "num_envs": 32,
        "microbatch_size": 128,
        "predicted_fps": 500.0,
    }
    return Setup.model_validate(values | changes)


def configured(algorithm: str = "ppo", mode: str = "sequential", **sections: Any) -> Config:
    """A run on coinrun with the made-up profile's network: 32 environments, 128 steps, of PPO 4 epochs."""
    ppo = algorithm == "ppo"
    training = {"n_steps": 128, "n_epochs": 4 if ppo else 1, "batch_size": 1024 if ppo else None}
    data: dict[str, Any] = {
        "algorithm": algorithm,
        "mode": mode,
        "env": {"id": "coinrun", "num_envs": 32},
        "model": {"architecture": "nature"},
        "training": {**training, "normalize_advantages": ppo},
    }
    for name, values in sections.items():
        data[name] = {**data.get(name, {}), **values}
    return build_config(data, "a test")


def with_results() -> Profile:
    """The made-up profile with what it says of PPO, which a run has tried, and of IMPALA."""
    reached = ShortRun(
        setup=recommend(profile(), configured()),
        fps=200.0,
        n_steps=64,
        batch_size=1024,
        updates=3,
        startup_seconds=4.0,
        shares={"learn": 0.9, "sync": 0.1},
    )
    results = (
        result_of(profile(), configured(), reached),
        result_of(profile(), configured("impala", "parallel", training={"n_steps": 16}), None),
    )
    return profile().model_copy(update={"results": results})
