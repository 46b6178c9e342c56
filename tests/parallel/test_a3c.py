"""A3C: one worker is A2C, counts are exact, no update is lost, and it goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlcb.cli.train import main
from tests import fault_env, runs

FLAGS = (
    *("--env", "CartPole-v1", "--n-steps", 8, "--gamma", 0.99, "--learning-rate", 1e-2, "--num-threads", 1),
    *("--set", "logging.tensorboard=false"),
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_one_worker_is_a2c(tmp_path: Path, optimizer: str) -> None:
    flags = (*FLAGS, "--num-envs", 4, "--set", f"training.optimizer={optimizer}", "--total-timesteps", 640)
    assert main("a2c", "sequential", False, [*map(str, flags), "--output-dir", str(tmp_path / "a2c")]) == 0
    result = runs.call(
        "train.py --algorithm a3c --mode parallel",
        *flags,
        "--num-workers",
        1,
        "--output-dir",
        tmp_path / "a3c",
    )
    assert result.returncode == 0, result.stderr
    torch.testing.assert_close(
        runs.parameters(tmp_path / "a3c"), runs.parameters(tmp_path / "a2c"), atol=1e-5, rtol=0
    )
    for ours, theirs in zip(runs.rows(tmp_path / "a3c"), runs.rows(tmp_path / "a2c"), strict=True):
        assert ours["timesteps"] == theirs["timesteps"]
        assert ours["rollout/ep_reward_mean"] == theirs["rollout/ep_reward_mean"]
        assert ours["rollout/reward_per_step"] == theirs["rollout/reward_per_step"]
        assert ours["train/policy_loss"] == pytest.approx(theirs["train/policy_loss"], abs=1e-5)
        assert ours["train/learning_rate"] == theirs["train/learning_rate"]


@pytest.mark.timeout(300)
def test_counts_are_exact_and_no_update_is_lost_with_three_workers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    slow = ("--env", fault_env.ID, "--set", "env.kwargs.delay=0.004")  # so that workers take turns
    flags = (*FLAGS, *slow, "--num-workers", 3, "--num-envs-per-worker", 2, "--output-dir", folder)
    result = runs.call("train.py --algorithm a3c --mode parallel", *flags, "--total-timesteps", 16 * 100 - 5)
    assert result.returncode == 0, result.stderr
    record, final, rows = runs.record(folder), runs.checkpoint(folder), runs.rows(folder)
    assert record["total_updates"] == 100
    assert record["total_timesteps"] == 1600 == rows[-1]["timesteps"]
    # the shared optimizer has made every step, and each was made by one worker
    assert final["learner"]["optimizer"]["state"][0]["step"].item() == 100
    assert sum(final["worker_updates"]) == 100
    assert min(final["worker_updates"]) > 0
    ages = [row["a3c/gradient_age_mean"] for row in rows]
    assert max(ages) > 0

    result = runs.call(
        "train.py --algorithm a3c --mode parallel",
        "--resume",
        "--total-timesteps",
        16 * 150,
        "--output-dir",
        folder,
    )
    assert result.returncode == 0, result.stderr
    assert runs.record(folder)["total_updates"] == 150
    final = runs.checkpoint(folder)
    assert final["learner"]["optimizer"]["state"][0]["step"].item() == 150
    assert sum(final["worker_updates"]) == 150


def test_a3c_has_no_sequential_mode_and_takes_no_setting_of_ppo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, words in (
        (("--set", "training.clip_range=0.1"), "only PPO has this setting, not A3C"),
        (("--n-epochs", "3"), "A3C uses a rollout once"),
        (("--batch-size", "8"), "A3C learns from the whole rollout at once"),
        (("--num-actors", "2"), "only IMPALA has actors"),
        (("--set", "parallel.check_every=5"), "A3C's workers never hold the same parameters"),
    ):
        arguments = [*map(str, FLAGS), "--num-workers", "1", *flags, "--output-dir", str(tmp_path / "run")]
        assert main("a3c", "parallel", False, arguments) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
