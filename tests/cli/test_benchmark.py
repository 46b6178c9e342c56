"""run_benchmark.py as users run it: small studies that complete, stop, resume, fail or are locked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlcb.processes.machine_lock import PATH_VARIABLE, Lock
from tests import runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = (
    *("--set", "env.num_envs=4", "--set", "training.n_steps=16", "--set", "ppo:training.batch_size=32"),
    *("--set", "hardware.num_threads=1", "--set", "logging.tensorboard=false"),
    *("--set", "logging.snapshot_seconds=0"),
)
CARTPOLE = ("--envs", "CartPole-v1", *SMALL, "--evaluate-episodes", 2)
ONE = (*CARTPOLE, "--algorithms", "ppo", "--modes", "sequential")
HOURS = 0.0015  # long enough that a run can be stopped before it ends
FIRST, SECOND = "ppo_sequential_CartPole-v1_seed1", "ppo_sequential_CartPole-v1_seed2"

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment variables of a study, with a machine lock for this test only."""
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, PATH_VARIABLE: str(tmp_path / "lock"), "PYTHONPATH": path}


@pytest.fixture
def call(tmp_path: Path, environment: dict[str, str]) -> Call:
    """Runs run_benchmark.py on the study in tmp_path/s."""

    def call(*flags: object) -> subprocess.CompletedProcess[str]:
        folder = ("--output-dir", tmp_path / "s")
        return runs.run("run_benchmark.py", *flags, *folder, env=environment, timeout=250)

    return call


def line_of(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one-line error of a command that ended with this exit code."""
    assert done.returncode == code, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("run_benchmark.py: ")
    return line


def events(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "study_log.jsonl").read_text().splitlines()]


def starts(root: Path) -> list[tuple[str, bool]]:
    return [(each["run"], each["resumed"]) for each in events(root) if each["event"] == "start"]


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (folder / "evaluation").glob("*.json")]


def test_a_study_trains_evaluates_and_compares_and_repeats_nothing(tmp_path: Path, call: Call) -> None:
    root = tmp_path / "s"
    done = call(
        *("--algorithms", "ppo", "a3c", "--envs", "coinrun", *SMALL, "--set", "model.architecture=nature"),
        *("--num-workers", 2, "--seeds", 5, "--total-timesteps", 256, "--evaluate-episodes", 2),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = [f"{each}_coinrun_seed5" for each in ("ppo_sequential", "ppo_parallel", "a3c_parallel")]
    assert starts(root) == [(name, False) for name in names]
    for name in names:
        record = runs.record(root / name)
        assert record["status"] == "completed"
        assert record["config"]["env"]["num_envs"] == 4
        assert record["total_timesteps"] >= 256
        (evaluation,) = evaluations(root / name)
        assert {split: result["episodes"] for split, result in evaluation["splits"].items()} == {
            "train": 2,
            "test": 2,
        }
    assert done.stdout.index("STUDY of 3 runs") < done.stdout.index("[1/3]") < done.stdout.index("[3/3]")
    assert "A3C sequential (one sequential A3C worker is A2C)" in done.stdout
    assert "3 of 3 runs completed, 0 failed" in done.stdout
    for each in events(root):
        if each["event"] == "start":
            assert 0 <= each["load"]["cpu_percent"] <= 100
    assert (root / "comparison.png").stat().st_size > 1000

    before = {path: path.stat().st_mtime_ns for path in root.glob("*/benchmark_metrics.json")}
    again = call()
    assert again.returncode == 0, again.stdout + again.stderr
    assert "nothing is left to run" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in root.glob("*/benchmark_metrics.json")} == before
    assert len(starts(root)) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_study_resumes(
    tmp_path: Path, call: Call, environment: dict[str, str], number: int
) -> None:
    root = tmp_path / "s"
    flags = (*ONE, "--seeds", 1, 2, "--duration", HOURS, "--output-dir", root)
    process = runs.start("run_benchmark.py", *flags, env=environment)
    runs.wait_for_rows(root / SECOND, 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, out + err
    assert err == ""
    assert "Interrupted: 1 of 2 runs are done" in out
    stopped = runs.record(root / SECOND)
    assert stopped["status"] == "interrupted"
    assert 0 < stopped["duration_hours"] < HOURS
    assert runs.processes_of(root) == []
    first = (root / FIRST / "benchmark_metrics.json").read_bytes()

    done = call()
    assert done.returncode == 0, done.stdout + done.stderr
    assert starts(root) == [(FIRST, False), (SECOND, False), (SECOND, True)]
    assert (root / FIRST / "benchmark_metrics.json").read_bytes() == first
    assert runs.record(root / SECOND)["status"] == "completed"
    assert 0.8 * HOURS < runs.record(root / SECOND)["duration_hours"] < 3 * HOURS
    rows = runs.rows(root / SECOND)
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1))
    assert len(evaluations(root / SECOND)) == 1


BRITTLE = """
import os
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Brittle(CartPoleEnv):
    def step(self, action):
        if os.path.exists({broken!r}):
            raise ValueError("the pole broke")
        return super().step(action)

gymnasium.register("Brittle-v0", entry_point=Brittle, max_episode_steps=50)
"""


def test_a_failed_run_does_not_stop_the_others_and_is_retried_on_request(tmp_path: Path, call: Call) -> None:
    root, broken = tmp_path / "s", tmp_path / "broken"
    (tmp_path / "brittle.py").write_text(BRITTLE.format(broken=str(broken)))
    broken.touch()
    flags = (*ONE, "--envs", "brittle:Brittle-v0", "CartPole-v1", "--seeds", 1, "--total-timesteps", 300)
    done = call(*flags)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 of 2 runs completed, 1 failed" in done.stdout
    assert "the pole broke" in done.stdout
    name = "ppo_sequential_brittle-Brittle-v0_seed1"
    assert runs.record(root / name)["status"] == "failed"
    assert runs.record(root / FIRST)["status"] == "completed"

    again = call()
    assert again.returncode == 1
    assert "the pole broke (earlier)" in again.stdout
    assert "--retry-failed" in again.stdout
    assert len(starts(root)) == 2

    broken.unlink()
    retried = call("--retry-failed")
    assert retried.returncode == 0, retried.stdout + retried.stderr
    assert starts(root)[2:] == [(name, True)]
    assert runs.record(root / name)["status"] == "completed"


def test_a_run_that_is_killed_counts_as_failed(
    tmp_path: Path, environment: dict[str, str], call: Call
) -> None:
    root = tmp_path / "s"
    flags = (*ONE, "--seeds", 1, "--total-timesteps", 10**8, "--output-dir", root)
    process = runs.start("run_benchmark.py", *flags, env=environment)
    runs.wait_for_rows(root / FIRST, 2)
    (training,) = [each for each in runs.processes_of(root / FIRST) if each.pid != process.pid]
    training.kill()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert "killed by signal 9 (SIGKILL)" in out
    assert runs.record(root / FIRST)["status"] == "failed"
    plan = call("--dry-run")
    assert plan.returncode == 0
    assert "failed (--retry-failed retries it)" in plan.stdout


def test_after_a_killed_study_the_next_one_names_the_running_training(
    tmp_path: Path, environment: dict[str, str], call: Call
) -> None:
    root = tmp_path / "s"
    flags = (*ONE, "--seeds", 1, "--total-timesteps", 10**8, "--output-dir", root)
    process = runs.start("run_benchmark.py", *flags, env=environment)
    runs.wait_for_rows(root / FIRST, 2)
    (training,) = [each for each in runs.processes_of(root / FIRST) if each.pid != process.pid]
    try:
        process.kill()
        process.communicate(timeout=30)
        assert f"kill {training.pid} ends it safely" in line_of(call(), 2)
    finally:
        training.terminate()
    training.wait(30)
    assert runs.record(root / FIRST)["status"] == "interrupted"


def test_a_second_study_is_refused_while_one_runs(tmp_path: Path, call: Call) -> None:
    lock = Lock(tmp_path / "lock", "")
    lock.acquire(tmp_path / "the other")
    line = line_of(call(*ONE, "--seeds", 1), 2)
    lock.release()
    assert str(tmp_path / "the other") in line
    assert f"pid {os.getpid()}" in line
    assert not (tmp_path / "s").exists()


def test_invalid_input_is_a_one_line_error_and_writes_nothing(tmp_path: Path, call: Call) -> None:
    root = tmp_path / "s"
    assert "coinrunn" in line_of(call(*ONE, "--envs", "coinrunn"), 2)
    assert "invalid choice: 'dqn'" in line_of(call("--algorithms", "dqn"), 2)
    assert "--algorithms" in line_of(call(), 2)
    assert not root.exists()
    assert call(*ONE, "--seeds", 1, "--dry-run").returncode == 0
    assert not root.exists()


def test_a_task_of_a_job_array_waits_for_the_machine_and_completes_its_run(
    tmp_path: Path, call: Call, environment: dict[str, str]
) -> None:
    root, programs = tmp_path / "s", tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (programs / "sbatch").chmod(0o755)
    environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHON": runs.command("x")[0]}
    done = call(*ONE, "--seeds", 1, 2, "--total-timesteps", 256, "--launcher", "slurm")
    assert done.returncode == 0, done.stdout + done.stderr

    lock = Lock(tmp_path / "lock", "")
    lock.acquire(tmp_path / "the other")  # as a task that got the same node
    said = tmp_path / "said"
    with said.open("w") as output:
        task = subprocess.Popen(
            ["bash", "cluster/slurm_array.sbatch", str(root)],
            cwd=runs.PROJECT,
            env={**environment, "SLURM_ARRAY_TASK_ID": "2"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    runs.wait_until(lambda: "waiting: " in said.read_text() or task.poll() is not None)
    assert f"the study in {tmp_path / 'the other'}" in said.read_text()
    assert task.poll() is None
    assert not (root / SECOND / "config.yaml").exists()
    lock.release()
    task.wait(timeout=120)
    out = said.read_text()
    assert task.returncode == 0, out
    assert "completed" in out.splitlines()[-1]
    assert runs.record(root / SECOND)["status"] == "completed"
    assert len(evaluations(root / SECOND)) == 1
    assert not (root / FIRST).exists()
    assert "to do" in call("--dry-run").stdout
