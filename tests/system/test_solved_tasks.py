"""The settings of config/envs solve their tasks, as the guide says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcb.cli.train import main
from rlcb.config.env_packages import MINIGRID
from rlcb.evaluation.evaluation import evaluate
from tests import extras


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("task", "solved"), [("cartpole", 475), ("acrobot", -100), ("minigrid", 0.9)])
def test_ppo_solves_the_task(task: str, solved: float, tmp_path: Path) -> None:
    if task == "minigrid":
        extras.require(MINIGRID)
    flags = ("--config", f"config/envs/{task}.yaml", "--seed", "1", "--num-threads", "1")
    assert main("ppo", "sequential", False, [*flags, "--output-dir", str(tmp_path / "run")]) == 0
    result = evaluate(tmp_path / "run" / "checkpoints" / "ppo_sequential_final.pt", 100, seed=100)
    assert result["splits"]["full"]["mean_reward"] >= solved
