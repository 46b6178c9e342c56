"""What the learner loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import runs

RUNS = """
import sys
from rlcb.cli.train import main
for optimizer in ("adam", "rmsprop"):
    flags = ["--env", "CartPole-v1", "--num-envs", "2", "--n-steps", "4", "--batch-size", "8"]
    settings = ["--set", f"training.optimizer={optimizer}", "--set", "logging.tensorboard=false"]
    for more in (["--total-timesteps", "8"], ["--total-timesteps", "16", "--resume"]):
        assert main("ppo", "sequential", False, [*flags, *settings, *more, "--output-dir", optimizer]) == 0
import rlcb.parallel.preload
assert "rlcb.parallel.worker" in sys.modules
assert "torch._dynamo" not in sys.modules
"""


def test_neither_a_run_nor_the_origin_of_workers_loads_torchs_compiler(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", RUNS], capture_output=True, text=True, timeout=90, check=False,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(runs.PROJECT / "src")},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
