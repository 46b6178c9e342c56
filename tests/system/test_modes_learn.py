"""PPO and A2C learn in every mode. tests/parallel and tests/cluster compare the results of the modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cluster_runs, runs
from tests.cluster_runs import torchrun
from tests.rl.test_learning import A2C_IMAGE, PPO_IMAGE, final_reward

pytestmark = pytest.mark.timeout(300)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "flags"), [("ppo", PPO_IMAGE), ("a2c", A2C_IMAGE)])
def test_two_workers_solve_the_image_environment(
    tmp_path: Path, algorithm: str, flags: tuple[object, ...]
) -> None:
    assert final_reward(algorithm, "parallel", tmp_path / "run", *flags, "--num-workers", 2) > 9


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["bf16", "powersgd"])
def test_ranks_that_exchange_compressed_gradients_learn_cartpole(compression: str, tmp_path: Path) -> None:
    command = torchrun(
        cluster_runs.PPO, "--env", "CartPole-v1", "--num-envs", 8, "--n-steps", 64, "--batch-size", 128,
        "--n-epochs", 6, "--gamma", 0.98, "--learning-rate", 2e-3, "--set", "training.gae_lambda=0.9",
        "--set", "training.ent_coef=0", "--set", f"cluster.compression={compression}",
        "--set", "logging.tensorboard=false",
        "--total-timesteps", 25_000, "--set", "logging.log_interval=20", "--output-dir", tmp_path / "run",
    )  # fmt: skip
    process = cluster_runs.start(command)
    _, errors = process.communicate(timeout=140)
    assert process.returncode == 0, errors
    performance = runs.record(tmp_path / "run")["performance"]
    assert performance["initial_reward"] < 60
    assert performance["best_reward"] > 120
