"""What the process that starts workers writes into a run's folder when the run fails: only into the run's
own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rlcb.config.yaml_file import build_config
from rlcb.parallel.supervisor import core_warning
from rlcb.training.run_folder import LOCK_FILE
from tests import fault_env, runs

SMALL = (
    *("--env", fault_env.ID, "--num-envs", 4, "--n-steps", 8, "--total-timesteps", 64),
    *("--set", "logging.tensorboard=false"),
)
PPO = ("--num-workers", 2, "--batch-size", 16, "--n-epochs", 1)
SCRIPTS = {
    "train_ppo_parallel.py": PPO,
    "train_ppo_distributed.py": PPO,
    "train.py --algorithm a3c --mode parallel": ("--num-workers", 2),
    "train_impala_parallel.py": ("--num-actors", 2, "--set", "impala.num_learners=1"),
}


def files(folder: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK_FILE
    }


@pytest.mark.parametrize(
    ("environments", "workers", "cores", "warning"),
    [
        (32, 32, 32, None),
        (32, 4, 8, None),  # fewer workers by choice
        (32, 8, 4, "8 workers of 1 thread share 4 usable cores"),
        (
            *(32, 32, 48),
            "16 of 48 usable cores have no work: 32 environments divide among 32 workers at most; "
            "--num-envs 48 makes 48",
        ),
        (
            *(50, 25, 36),
            "11 of 36 usable cores have no work: 50 environments divide among 25 workers at most; "
            "--num-envs 72 makes 36",
        ),
    ],
)
def test_workers_that_do_not_fit_the_cores_are_warned_of(
    environments: int, workers: int, cores: int, warning: str | None
) -> None:
    env = {"id": "CartPole-v1", "num_envs": environments}
    data = {"algorithm": "ppo", "mode": "parallel", "env": env, "parallel": {"num_workers": workers}}
    config = build_config({**data, "training": {"batch_size": environments}}, "test")
    assert core_warning(config, 0, 1, cores) == warning


@pytest.mark.timeout(240)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_run_that_fails_before_the_folder_is_its_own_changes_nothing_there(
    tmp_path: Path, script: str
) -> None:
    folder = tmp_path / "run"
    process = "actor-1" if "impala" in script else "worker-1"
    flags = (*SMALL, *SCRIPTS[script], "--set", f"env.kwargs.process={process}", "--output-dir", folder)
    result = runs.call(script, *flags, "--set", "env.kwargs.fault=none")
    assert result.returncode == 0, result.stderr
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("fault: none", "fault: vanish"))
    before = files(folder)
    again = (*flags, "--set", "env.kwargs.fault=vanish", "--overwrite")
    for words in (("--resume", "--total-timesteps", 1000, "--output-dir", folder), again):
        result = runs.call(script, *words)
        assert result.returncode == 1, result.stderr
        assert "ended with exit code 7" in result.stderr.splitlines()[-1]
        assert files(folder) == before


@pytest.mark.timeout(120)
def test_a_run_whose_name_another_one_took_leaves_its_record_in_the_folder_that_it_has(
    tmp_path: Path,
) -> None:
    now = time.time()
    for second in range(100):
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now + second))
        other = tmp_path / "runs" / f"ppo_parallel_tests.fault_env-Fault-v0_seed42_{stamp}"
        other.mkdir(parents=True, exist_ok=True)
        (other / "config.yaml").write_text("of another run")
    fault = ("fault=kill", "process=worker-0", "at=20")  # in the third update
    settings = [word for each in fault for word in ("--set", f"env.kwargs.{each}")]
    flags = (*SMALL, *PPO, *settings, "--total-timesteps", 1e6)
    result = runs.run("train_ppo_parallel.py", *flags, cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "worker 0 was killed by SIGKILL" in result.stderr.splitlines()[-1]
    (own,) = tmp_path.glob("runs/*_2")
    record = runs.record(own)
    assert (record["status"], record["total_updates"], record["total_timesteps"]) == ("failed", 2, 64)
    assert list(tmp_path.glob("runs/*/benchmark_metrics.json")) == [own / "benchmark_metrics.json"]
