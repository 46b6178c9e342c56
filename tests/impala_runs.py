"""Flags of small runs of parallel IMPALA, and what has to hold of every one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests import runs, step_env
from tests.impala_team import N_STEPS

SCRIPT = "train_impala_parallel.py"
STEP = (
    *("--env", step_env.ID, "--num-envs", 4, "--n-steps", N_STEPS, "--set", "impala.num_actors=2"),
    *("--set", "impala.num_learners=1", "--set", "logging.tensorboard=false"),
    *("--set", "logging.snapshot_seconds=0"),
)
PER_UPDATE = 4 * N_STEPS


def of_env(**kwargs: object) -> tuple[str, ...]:
    return tuple(
        part for key, value in kwargs.items() for part in ("--set", f"env.kwargs.{key}={json.dumps(value)}")
    )


def require_exact_counts(folder: Path, timesteps: int) -> None:
    """Every transition of whole unrolls counts once: an episode is an unroll, its reward falls on its end."""
    record, rows = runs.record(folder), runs.rows(folder)
    assert record["status"] == "completed"
    assert record["total_timesteps"] == timesteps
    assert record["total_updates"] == len(rows) == timesteps // PER_UPDATE
    assert [row["timesteps"] for row in rows] == list(range(PER_UPDATE, timesteps + 1, PER_UPDATE))
    assert [row["rollout/episodes"] for row in rows] == [row["timesteps"] // N_STEPS for row in rows]
    assert {row["rollout/ep_reward_mean"] for row in rows} == {1.0}
    assert {row["rollout/ep_length_mean"] for row in rows} == {float(N_STEPS)}
    assert {row["rollout/reward_per_step"] for row in rows} == {1 / N_STEPS}


# What a run without lag logs as the sequential one does.
EQUAL_KEYS = (
    "timesteps",
    "rollout/episodes",
    "rollout/ep_reward_mean",
    "rollout/ep_length_mean",
    "rollout/reward_per_step",
    "train/policy_loss",
    "train/value_loss",
    "train/entropy",
    "train/explained_variance",
    "train/grad_norm",
    "train/learning_rate",
)
POLE = (
    *("--env", "CartPole-v1", "--num-envs", 4, "--n-steps", 8, "--total-timesteps", 32 * 20, "--seed", 3),
    *("--set", "logging.tensorboard=false", "--set", "training.lr_schedule=linear"),
    *("--learning-rate", 3e-3, "--num-threads", 1, *of_env(max_episode_steps=15)),  # so that some truncate
)


def require_equal_runs(folder: Path, other: Path) -> None:
    """Two runs of POLE, the first with actors and without lag, learned the same."""
    ours, theirs = runs.rows(folder), runs.rows(other)
    assert len(ours) == len(theirs) == 20
    for mine, one in zip(ours, theirs, strict=True):
        for key in EQUAL_KEYS:
            expected = one[key]
            equal = expected if expected is None else pytest.approx(expected, rel=1e-3, abs=2e-5)
            assert mine[key] == equal, (key, mine["update"])
        assert mine["impala/policy_lag_max"] == 0
    torch.testing.assert_close(runs.parameters(folder), runs.parameters(other), atol=2e-5, rtol=0)
    assert runs.record(folder)["performance"] == pytest.approx(runs.record(other)["performance"])
