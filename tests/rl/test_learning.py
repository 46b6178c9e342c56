"""Every algorithm learns: an image environment with a CNN, CartPole with an MLP, fixed seeds.

tests/system/test_modes_learn.py trains PPO and A2C in the other modes, which compute the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcb.cli.train import main
from tests import image_env, runs

IMAGE = (
    *("--env", image_env.ID, "--num-envs", 16, "--gamma", 0.9, "--seed", 1, "--num-threads", 1),
    *("--set", "model.impala_channels=[8, 8]", "--set", "model.hidden_size=32"),
    *("--set", "logging.tensorboard=false"),
)
CARTPOLE = (
    *("--env", "CartPole-v1", "--num-envs", 8, "--gamma", 0.98, "--seed", 1, "--num-threads", 1),
    *("--set", "logging.tensorboard=false"),
)


def final_reward(algorithm: str, mode: str, folder: Path, *flags: object) -> float:
    """Train in the mode's own way and return the mean of the last 100 episodes."""
    if mode == "sequential":
        assert main(algorithm, mode, False, [*map(str, flags), "--output-dir", str(folder)]) == 0
    else:
        result = runs.call(f"train.py --algorithm {algorithm} --mode {mode}", *flags, "--output-dir", folder)
        assert result.returncode == 0, result.stderr
    return float(runs.record(folder)["performance"]["final_reward"])


PPO_IMAGE = (
    *(*IMAGE, "--n-steps", 32, "--batch-size", 128, "--n-epochs", 3, "--learning-rate", 1e-3),
    *("--total-timesteps", 10_000),
)
A2C_IMAGE = (*IMAGE, "--n-steps", 8, "--learning-rate", 2e-3, "--total-timesteps", 16_000)


@pytest.mark.timeout(300)
def test_ppo_solves_the_image_environment(tmp_path: Path) -> None:
    assert final_reward("ppo", "sequential", tmp_path / "run", *PPO_IMAGE) > 9


@pytest.mark.timeout(300)
def test_ppo_balances_the_pole(tmp_path: Path) -> None:
    flags = (
        *CARTPOLE, "--n-steps", 32, "--batch-size", 256, "--n-epochs", 10, "--learning-rate", 1e-3,
        "--set", "training.ent_coef=0", "--set", "training.lr_schedule=linear", "--total-timesteps", 60_000,
    )  # fmt: skip
    assert final_reward("ppo", "sequential", tmp_path / "run", *flags) > 300


@pytest.mark.timeout(300)
def test_a2c_solves_the_image_environment(tmp_path: Path) -> None:
    assert final_reward("a2c", "sequential", tmp_path / "run", *A2C_IMAGE) > 9


@pytest.mark.timeout(300)
def test_a3c_solves_the_image_environment(tmp_path: Path) -> None:
    """With one of two seeds: no two of its runs are alike."""
    rewards: list[float] = []
    while len(rewards) < 2 and max(rewards, default=0.0) <= 9:
        flags = (*A2C_IMAGE, "--num-workers", 2, "--seed", 1 + len(rewards))
        rewards.append(final_reward("a3c", "parallel", tmp_path / str(len(rewards)), *flags))
    assert max(rewards) > 9, rewards
