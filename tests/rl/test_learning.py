"""Every algorithm and mode learns: an image environment with a CNN, CartPole with an MLP, fixed seeds."""

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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_ppo_solves_the_image_environment(tmp_path: Path, mode: str) -> None:
    flags = (
        *IMAGE, "--n-steps", 32, "--batch-size", 128, "--n-epochs", 3, "--learning-rate", 1e-3,
        "--total-timesteps", 10_000,
    )  # fmt: skip
    workers = ("--num-workers", 2) if mode == "parallel" else ()
    assert final_reward("ppo", mode, tmp_path / "run", *flags, *workers) > 9


@pytest.mark.timeout(300)
def test_ppo_balances_the_pole(tmp_path: Path) -> None:
    flags = (
        *CARTPOLE, "--n-steps", 32, "--batch-size", 256, "--n-epochs", 10, "--learning-rate", 1e-3,
        "--set", "training.ent_coef=0", "--set", "training.lr_schedule=linear", "--total-timesteps", 60_000,
    )  # fmt: skip
    assert final_reward("ppo", "sequential", tmp_path / "run", *flags) > 300


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("algorithm", "mode"), [("a2c", "sequential"), ("a2c", "parallel"), ("a3c", "parallel")]
)
def test_a2c_and_a3c_solve_the_image_environment(tmp_path: Path, algorithm: str, mode: str) -> None:
    flags = (*IMAGE, "--n-steps", 8, "--learning-rate", 2e-3, "--total-timesteps", 16_000)
    workers = ("--num-workers", 2) if mode == "parallel" else ()
    rewards = [final_reward(algorithm, mode, tmp_path / "1", *flags, *workers)]
    if algorithm == "a3c" and rewards[0] <= 9:  # no two of its runs are alike: one seed of two is enough
        rewards.append(final_reward(algorithm, mode, tmp_path / "2", *flags, *workers, "--seed", 2))
    assert max(rewards) > 9, rewards
