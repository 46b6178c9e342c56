"""run_benchmark.py as users run it: small studies that complete, stop, resume, fail or are locked.

Starts that train are processes of their own; starts that only print, refuse or compare run in this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rlcb.cli.benchmark import main
from rlcb.processes.machine_lock import PATH_VARIABLE, Lock
from tests import runs
from tests.cli.conftest import SMALL, TIMESTEPS, FinishedStudy, isolated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ONE = (
    *("--envs", "CartPole-v1", *SMALL, "--evaluate-episodes", 2),
    *("--algorithms", "ppo", "--modes", "sequential"),
)
FIRST, SECOND = "ppo_sequential_CartPole-v1_seed1", "ppo_sequential_CartPole-v1_seed2"


class Result(NamedTuple):
    """The exit code and the output of a start of run_benchmark.py."""

    returncode: int
    stdout: str
    stderr: str


Call = Callable[..., Result]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return isolated(tmp_path)


@pytest.fixture
def call(
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """Runs run_benchmark.py in this process, on the study in tmp_path/s."""
    for name in (PATH_VARIABLE, "PYTHONPATH"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setattr("sys.argv", ["run_benchmark.py"])

    def call(*flags: object, root: Path = tmp_path / "s") -> Result:
        capsys.readouterr()
        monkeypatch.syspath_prepend(root.parent)  # environments of the study
        code = main([*map(str, flags), "--output-dir", str(root)])
        return Result(code, *capsys.readouterr())

    return call


def line_of(done: Result, code: int) -> str:
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


def test_a_study_on_procgen_trains_parallel_runs_evaluates_and_compares(tmp_path: Path, call: Call) -> None:
    root = tmp_path / "s"
    done = call(
        *("--algorithms", "a3c", "--envs", "coinrun", *SMALL[:4], *SMALL[6:]),
        *("--set", "model.architecture=nature", "--num-workers", 2, "--seeds", 5),
        *("--total-timesteps", 256, "--evaluate-episodes", 2),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    name = "a3c_parallel_coinrun_seed5"
    assert starts(root) == [(name, False)]
    record = runs.record(root / name)
    assert record["status"] == "completed"
    assert record["config"]["env"]["num_envs"] == 4
    assert record["config"]["parallel"]["num_workers"] == 2
    assert record["total_timesteps"] >= 256
    (evaluation,) = evaluations(root / name)
    assert {split: result["episodes"] for split, result in evaluation["splits"].items()} == {
        "train": 2,
        "test": 2,
    }
    assert done.stdout.index("STUDY of 1 run") < done.stdout.index("[1/1]")
    assert "A3C sequential (one sequential A3C worker is A2C)" in done.stdout
    assert "1 of 1 run completed, 0 failed" in done.stdout
    assert (root / "comparison.png").stat().st_size > 1000


def test_a_study_that_sigint_stopped_resumes_where_it_was(finished_study: FinishedStudy) -> None:
    study = finished_study
    assert study.exit_code == 128 + signal.SIGINT, study.out + study.err
    assert study.err == ""
    assert "Interrupted: 1 of 2 runs are done" in study.out
    assert study.left == []
    first, stopped = map(json.loads, study.at_stop)
    assert (first["status"], stopped["status"]) == ("completed", "interrupted")
    assert 0 < stopped["total_timesteps"] < TIMESTEPS

    root = study.root
    assert starts(root) == [(study.first, False), (study.second, False), (study.second, True)]
    assert (root / study.first / "benchmark_metrics.json").read_text() == study.at_stop[0]
    assert runs.record(root / study.second)["status"] == "completed"
    assert runs.record(root / study.second)["total_timesteps"] == TIMESTEPS
    rows = runs.rows(root / study.second)
    assert [row["update"] for row in rows] == list(range(1, TIMESTEPS // 64 + 1))
    for name in (study.first, study.second):
        assert len(evaluations(root / name)) == 1
    for each in events(root):
        if each["event"] == "start":
            assert 0 <= each["load"]["cpu_percent"] <= 100
    assert study.out.index("STUDY of 2 runs") < study.out.index("[1/2]") < study.out.index("[2/2]")
    assert "2 of 2 runs completed, 0 failed" in study.resumed
    *_, answer, picture = study.resumed.splitlines()
    assert answer and picture == f"Picture: {root / 'comparison.png'}"
    assert (root / "comparison.png").stat().st_size > 1000


def test_a_finished_study_repeats_nothing(finished_study: FinishedStudy, call: Call) -> None:
    root = finished_study.root
    before = {path: path.stat().st_mtime_ns for path in root.glob("*/benchmark_metrics.json")}
    again = call(root=root)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "nothing is left to run" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in root.glob("*/benchmark_metrics.json")} == before
    assert len(starts(root)) == 3


def test_sigterm_stops_a_study_with_its_run_saved(tmp_path: Path, environment: dict[str, str]) -> None:
    root = tmp_path / "s"
    flags = (*ONE, "--seeds", 1, 2, "--duration", 1, "--output-dir", root)
    process = runs.start("run_benchmark.py", *flags, env=environment)
    runs.wait_for_rows(root / FIRST, 3)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, out + err
    assert err == ""
    assert "Interrupted: 0 of 2 runs are done" in out
    stopped = runs.record(root / FIRST)
    assert stopped["status"] == "interrupted"
    assert 0 < stopped["duration_hours"] < 1
    assert len([*(root / FIRST / "checkpoints").glob(f"*_step_{stopped['total_timesteps']}.pt")]) == 1
    assert runs.processes_of(root) == []
    assert not (root / SECOND / "config.yaml").exists()


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
    done = call(*flags, "--evaluate-episodes", 0)
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
    tmp_path: Path, call: Call, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, programs = tmp_path / "s", tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (programs / "sbatch").chmod(0o755)
    environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHON": runs.command("x")[0]}
    monkeypatch.setenv("PATH", environment["PATH"])
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
