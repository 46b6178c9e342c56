"""`rlcb tune` with real training: a small search, pruning, kill and continue, and settings that train."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest

from rlcb.cli import tune
from rlcb.processes import subprocesses
from rlcb.tuning import tuner
from rlcb.tuning.folder import open_tuning
from tests import fault_env, runs

SMALL = (
    *("--mode", "sequential", "--envs", "CartPole-v1", "--num-envs", "8"),
    *("--set", "hardware.num_threads=1", "--set", "logging.tensorboard=false"),
)


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_BENCHMARK_LOCK", str(tmp_path / "lock"))
    monkeypatch.setenv("PYTHONPATH", str(runs.PROJECT / "src"))


def trials(root: Path, algorithm: str) -> list[Any]:
    return optuna.load_study(study_name=algorithm, storage=f"sqlite:///{root / 'optuna.db'}").trials


def processes_below(root: Path) -> list[int]:
    """Processes whose command line names a folder in `root`."""
    return [each.pid for each in psutil.process_iter(["cmdline"]) if str(root) in str(each.info["cmdline"])]


@pytest.mark.slow
def test_a_small_search_finds_settings_that_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "t"
    budget = ("--trials", "2", "--total-timesteps", "2048")
    assert tune.main(["--algorithms", "ppo", "impala", *SMALL, *budget, "--output-dir", str(root)]) == 0
    printed = capsys.readouterr().out
    assert "Effort and result of each algorithm" in printed
    for algorithm in ("ppo", "impala"):
        assert [trial.state.name for trial in trials(root, algorithm)] == ["COMPLETE"] * 2
        for number in range(2):
            folder = root / algorithm / f"trial_{number:03d}" / "CartPole-v1_seed1"
            rows, record = runs.rows(folder), runs.record(folder)
            assert record["status"] == "completed"
            assert 2048 <= record["total_timesteps"] <= 4096  # equal up to one rollout
            # the score again, from the rows: rewards by episodes in the last quarter
            late = [row for row in rows if row["timesteps"] > 2048 * 6 / 8]
            first = [row for row in rows if row["timesteps"] <= 2048 * 6 / 8][-1:]
            start = first[0]["timesteps"] if first else 0
            ended = late[-1]["rollout/episodes"] - (first[0]["rollout/episodes"] if first else 0)
            expected = (late[-1]["timesteps"] - start) / max(8, ended)  # every step has the reward 1
            assert trials(root, algorithm)[number].value == pytest.approx(expected)
    summary = json.loads((root / "tuning.json").read_text())["algorithms"]["ppo"]
    assert summary["best_score"] >= summary["default_score"]
    result = runs.run(
        "train.py --algorithm ppo --mode sequential --env CartPole-v1 --total-timesteps 512",
        *("--config", "config/ppo_sequential.yaml", "--config", root / "ppo.yaml"),
        *("--output-dir", tmp_path / "run"),
    )
    assert result.returncode == 0, result.stderr
    trained = runs.record(tmp_path / "run")["config"]["training"]
    for key, value in summary["best_settings"].items():
        assert trained[key.removeprefix("training.")] == value


@pytest.mark.slow
def test_a_killed_tuning_continues_its_run_with_the_same_command(tmp_path: Path) -> None:
    root = tmp_path / "t"
    flags = (
        *("--algorithms", "a2c", "--mode", "sequential", "--envs", fault_env.ID, "--num-envs", "4"),
        *("--set", "env.kwargs.delay=0.002", "--set", "logging.checkpoint_interval=5"),
        *("--set", "logging.tensorboard=false", "--set", "hardware.num_threads=1"),
        *("--trials", "2", "--total-timesteps", "3000", "--output-dir", str(root)),
    )
    command = [sys.executable, "-m", "rlcb", "tune", *flags]
    first = root / "a2c" / "trial_000" / f"{fault_env.ID.replace(':', '-')}_seed1"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=runs.PROJECT)
    runs.wait_until(lambda: any(first.glob("checkpoints/*_step_*.pt")), what="no checkpoint")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert trials(root, "a2c")[0].state.name == "RUNNING"
    held = subprocess.run(command, capture_output=True, text=True, cwd=runs.PROJECT, timeout=60)
    assert held.returncode == 2  # the run of the killed tuning still trains
    assert "ends it safely" in held.stderr
    (child,) = processes_below(first)
    os.kill(child, signal.SIGKILL)
    runs.wait_until(lambda: not processes_below(first), what="the run did not end")
    result = subprocess.run(command, capture_output=True, text=True, cwd=runs.PROJECT, timeout=120)
    assert result.returncode == 0, result.stderr
    assert [trial.state.name for trial in trials(root, "a2c")] == ["COMPLETE"] * 2
    log = (first / "training.log").read_text()
    assert log.count("=== ") == 2 and "--resume" in log
    assert runs.record(first)["status"] == "completed"
    assert [row["update"] for row in runs.rows(first)] == list(range(1, len(runs.rows(first)) + 1))


@pytest.mark.slow
def test_ctrl_c_saves_the_run_and_says_how_to_continue(tmp_path: Path) -> None:
    root = tmp_path / "t"
    flags = ("--algorithms", "ppo", *SMALL, "--trials", "2", "--duration", "0.01", "--output-dir", str(root))
    command = [sys.executable, str(runs.PROJECT / "tune.py"), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=runs.PROJECT)
    first = root / "ppo" / "trial_000" / "CartPole-v1_seed1"
    runs.wait_for_rows(first, 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"python tune.py --output-dir {root}" in output
    assert runs.record(first)["status"] == "interrupted"
    assert runs.checkpoint(first, "step_*")
    assert processes_below(root) == []
    assert (root / "trials.csv").exists()


@pytest.mark.slow
def test_a_pruned_run_ends_saved_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second trial is judged after each part of its budget, and its scores are made poor."""
    root = tmp_path / "t"
    monkeypatch.setattr("rlcb.tuning.search.STARTUP_TRIALS", 1)
    monkeypatch.setattr(tuner, "READ_SECONDS", 0.05)
    monkeypatch.setattr(subprocesses, "POLL_SECONDS", 0.05)
    real = tuner.joint_score
    monkeypatch.setattr(
        tuner, "joint_score", lambda *arguments: real(*arguments) - 1000 * (len(trials(root, "a2c")) > 1)
    )
    flags = ("--algorithms", "a2c", *SMALL, "--set", "parallel.num_workers=2", "--trials", "2")
    budget = ("--mode", "parallel", "--duration", "0.002", "--output-dir", str(root))
    assert tune.main([*flags, *budget]) == 0
    assert [trial.state.name for trial in trials(root, "a2c")] == ["COMPLETE", "PRUNED"]
    folder = root / "a2c" / "trial_001" / "CartPole-v1_seed1"
    assert runs.record(folder)["status"] == "interrupted"
    assert runs.record(folder)["duration_hours"] < 0.002
    assert runs.checkpoint(folder, "step_*")["counters"]["updates"] == runs.rows(folder)[-1]["update"]
    assert processes_below(root) == []
    summary = json.loads((root / "tuning.json").read_text())["algorithms"]["a2c"]
    assert summary["trials"] == {"complete": 1, "pruned": 1, "failed": 0, "running": 0}


def test_without_optuna_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    flags = ["--algorithms", "ppo", "--output-dir", str(tmp_path / "t")]
    assert tune.main([*flags, "--dry-run"]) == 0  # a plan needs no Optuna
    capsys.readouterr()
    assert tune.main(flags) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert 'pip install "rl-cluster-benchmark[tune]"' in error
    assert not (tmp_path / "t").exists()


def test_an_algorithm_without_a_complete_trial_gives_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(command: object, log: Path, *_: object) -> int:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("rlcb train: failed: the world ended\n")
        return 1

    monkeypatch.setattr(tuner, "run_logged", fail)
    flags = ["--algorithms", "ppo", *SMALL, "--trials", "1", "--output-dir", str(tmp_path / "t")]
    assert tune.main(flags) == 1
    assert "no trial is complete" in capsys.readouterr().out
    assert not (tmp_path / "t" / "ppo.yaml").exists()


def test_two_tunings_do_not_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on two machines, which have locks of their own and share a file system."""
    root = tmp_path / "t"
    root.mkdir()
    other = tune.folder_lock(root)
    monkeypatch.setattr(tune, "open_tuning", lambda place, given: open_tuning(tmp_path / "none", given))
    flags = ["--algorithms", "ppo", *SMALL, "--trials", "1", "--output-dir", str(root)]
    other.acquire(root)
    try:
        assert tune.main(flags) == 2
    finally:
        other.release()
    assert "another process runs the tuning in" in capsys.readouterr().err


def test_the_extra_is_the_requirement_of_the_tests() -> None:
    extra = (runs.PROJECT / "requirements-tune.txt").read_text().splitlines()[-1]
    development = (runs.PROJECT / "requirements-dev.txt").read_text().splitlines()
    assert extra in [line.partition("#")[0].strip() for line in development]
