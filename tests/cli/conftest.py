"""A finished study of real runs that several tests share."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlcb.cli import benchmark
from rlcb.processes.machine_lock import PATH_VARIABLE
from tests import runs

SMALL = (
    *("--set", "env.num_envs=4", "--set", "training.n_steps=16", "--set", "ppo:training.batch_size=32"),
    *("--set", "hardware.num_threads=1", "--set", "logging.tensorboard=false"),
    *("--set", "logging.snapshot_seconds=0"),
)
TIMESTEPS = 512  # eight updates

GATED = """
import os, time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Gated(CartPoleEnv):
    \"\"\"CartPole whose steps take 50 ms while a file exists.\"\"\"

    def step(self, action):
        if os.path.exists({gate!r}):
            time.sleep(0.05)
        return super().step(action)

gymnasium.register("CartPole-gated", entry_point=Gated, max_episode_steps=50)
"""


def isolated(folder: Path) -> dict[str, str]:
    """The environment variables of a study with a machine lock of its own, and modules in `folder`."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, PATH_VARIABLE: str(folder / "lock"), "PYTHONPATH": path}


@dataclass
class FinishedStudy:
    """A study of two runs that was stopped by SIGINT during the second run and then resumed to its end."""

    root: Path
    environment: dict[str, str]
    first: str
    """Names of the runs."""
    second: str
    exit_code: int
    """Of the stopped start; `out` and `err` are its output."""
    out: str
    err: str
    left: list[int]
    """Processes that the stopped start left behind."""
    at_stop: tuple[str, str]
    """The record of each run after the stop."""
    resumed: str
    """The output of the second start."""


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> FinishedStudy:
    folder = tmp_path_factory.mktemp("finished")
    gate, root = folder / "gate", folder / "s"
    (folder / "gated.py").write_text(GATED.format(gate=str(gate)))
    environment = isolated(folder)
    first, second = (f"ppo_sequential_gated-CartPole-gated_seed{seed}" for seed in (1, 2))
    process = runs.start(
        *(
            "run_benchmark.py",
            "--algorithms",
            "ppo",
            "--modes",
            "sequential",
            "--envs",
            "gated:CartPole-gated",
        ),
        *(*SMALL, "--seeds", 1, 2, "--total-timesteps", TIMESTEPS, "--evaluate-episodes", 2),
        *("--output-dir", root),
        env=environment,
    )
    runs.wait_until((root / first / "benchmark_metrics.json").exists)
    gate.touch()
    runs.wait_for_rows(root / second, 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    gate.unlink()
    records = [(root / name / "benchmark_metrics.json").read_text() for name in (first, second)]
    left = [each.pid for each in runs.processes_of(root)]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as resumed:
        for name in (PATH_VARIABLE, "PYTHONPATH"):
            patch.setenv(name, environment[name])
        patch.syspath_prepend(folder)
        assert benchmark.main(["--output-dir", str(root)]) == 0, resumed.getvalue()
    return FinishedStudy(
        *(root, environment, first, second, process.returncode, out, err, left, (records[0], records[1])),
        resumed.getvalue(),
    )
