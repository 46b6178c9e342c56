"""What a run loads, in the process that learns: nothing that only torch.compile needs."""

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
image = ["--env", "tests.image_env:Corner-v0", "--num-envs", "2", "--n-steps", "4"]
small = ["--set", "model.impala_channels=[4]", "--set", "model.hidden_size=8"]
flags = [*image, *small, "--set", "logging.tensorboard=false", "--total-timesteps", "16"]
assert main("a2c", "sequential", False, [*flags, "--output-dir", "a2c"]) == 0
import rlcb.parallel.preload
assert "rlcb.parallel.worker" in sys.modules
assert not {"torch._dynamo", "sympy"} & sys.modules.keys()
"""


def test_neither_a_run_nor_the_origin_of_workers_loads_torchs_compiler(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", RUNS], capture_output=True, text=True, timeout=90, check=False,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{runs.PROJECT / 'src'}{os.pathsep}{runs.PROJECT}"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
