"""Whole sequential runs: the files that they write, how they end, and how they resume."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rlcb.cli.train import main
from rlcb.errors import RunError, UsageError
from rlcb.training import checkpoint as checkpoint_module
from rlcb.training import recorder as recorder_module
from rlcb.training.metrics_writer import ROW_KEYS
from rlcb.training.recorder import Recorder
from rlcb.training.run_folder import config_of_checkpoint
from rlcb.training.trainer import Update
from tests import fault_env, runs, step_env

CARTPOLE = (
    *("--env", "CartPole-v1", "--num-envs", 4, "--n-steps", 16, "--batch-size", 32, "--n-epochs", 2),
    *("--num-threads", 1, "--set", "logging.tensorboard=false"),
)
FAULT = (
    *("--env", fault_env.ID, "--num-envs", 2, "--n-steps", 8, "--batch-size", 16, "--n-epochs", 1),
    *("--num-threads", 1, "--set", "logging.tensorboard=false", "--set", "logging.snapshot_seconds=0"),
)


def train(
    *flags: object, timed: bool = False, stop_after: int | None = None, number: int = signal.SIGINT
) -> int:
    """Run the script in this process; return its exit code. It gets a signal after `stop_after` updates."""
    after_update = Recorder.after_update

    def and_stop(recorder: Recorder, update: Update, learning_rate: float) -> None:
        after_update(recorder, update, learning_rate)
        if update.metrics and recorder.trainer.counters.updates == stop_after:
            os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "after_update", and_stop)
        return main("ppo", "sequential", timed, [str(flag) for flag in flags])


def test_a_run_leaves_the_files_that_the_documentation_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert train(*CARTPOLE, "--total-timesteps", 200, "--output-dir", folder) == 0
    record, rows = runs.record(folder), runs.rows(folder)
    assert record["status"] == "completed"
    assert record["total_timesteps"] == 256  # 200 rounded up to whole rollouts of 64
    assert record["total_updates"] == len(rows) == 4
    assert record["total_episodes"] == rows[-1]["rollout/episodes"]
    assert record["average_fps"] == pytest.approx(256 / (record["duration_hours"] * 3600), rel=0.01)
    assert set(ROW_KEYS) <= set(rows[0])
    assert [row["timesteps"] for row in rows] == [64, 128, 192, 256]
    for row in rows:  # both figures come from one reading of the clock, rounded to 0.1 ms
        seconds = row["timesteps"] / row["time/fps_average"]
        assert row["time/elapsed_seconds"] == pytest.approx(seconds, abs=0.000051)
    columns = json.loads((folder / "metrics.json").read_text())
    assert columns["train/policy_loss"] == [row["train/policy_loss"] for row in rows]
    summary = json.loads((folder / "training_summary.json").read_text())
    assert (summary["algorithm"], summary["mode"], summary["total_timesteps"]) == ("ppo", "sequential", 256)
    assert yaml.safe_load((folder / "config.yaml").read_text())["training"]["n_steps"] == 16
    assert (folder / "checkpoints" / "ppo_sequential_final.pt").exists()
    output = capsys.readouterr().out
    assert "TRAINING SUMMARY" in output
    for line in (
        "Duration:",
        "Total timesteps:",
        "Average FPS:",
        "Final FPS:",
        "Initial reward:",
        "Peak memory:",
    ):
        assert line in output


def test_config_yaml_alone_reproduces_the_run(tmp_path: Path) -> None:
    assert train(*CARTPOLE, "--total-timesteps", 128, "--seed", 5, "--output-dir", tmp_path / "a") == 0
    assert train("--config", tmp_path / "a" / "config.yaml", "--output-dir", tmp_path / "b") == 0
    assert torch.equal(runs.parameters(tmp_path / "a"), runs.parameters(tmp_path / "b"))
    assert (tmp_path / "a" / "config.yaml").read_text() == (tmp_path / "b" / "config.yaml").read_text()


def test_other_seeds_give_other_runs(tmp_path: Path) -> None:
    for seed in (1, 2):
        flags = ("--total-timesteps", 64, "--seed", seed, "--output-dir", tmp_path / str(seed))
        assert train(*CARTPOLE, *flags) == 0
    assert not torch.equal(runs.parameters(tmp_path / "1"), runs.parameters(tmp_path / "2"))


@pytest.mark.parametrize("env", ["CartPole-v1", "procgen-bigfish-v0"])
def test_a_resumed_run_equals_one_that_never_stopped(tmp_path: Path, env: str) -> None:
    flags = (
        *CARTPOLE, "--env", env, "--set", "training.lr_schedule=linear", "--set", "model.hidden_size=16",
        "--set", "logging.snapshot_seconds=0",
        "--set", "model.architecture=" + ("auto" if env == "CartPole-v1" else "nature"),
    )  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(*flags, "--total-timesteps", 8 * 64, "--output-dir", whole) == 0
    assert train(*flags, "--total-timesteps", 8 * 64, "--output-dir", parts, stop_after=4) == 130
    assert len(runs.rows(parts)) == 4
    assert train("--resume", "--output-dir", parts) == 0
    assert torch.equal(runs.parameters(parts), runs.parameters(whole))
    keys = (
        "timesteps",
        "rollout/ep_reward_mean",
        "train/policy_loss",
        "train/learning_rate",
        "rollout/episodes",
    )
    for key in keys:
        assert [row[key] for row in runs.rows(parts)] == [row[key] for row in runs.rows(whole)]
    assert runs.record(parts)["performance"] == runs.record(whole)["performance"]


def test_linear_annealing_in_the_log(tmp_path: Path) -> None:
    flags = ("--learning-rate", 1e-3, "--set", "training.lr_schedule=linear", "--total-timesteps", 256)
    assert train(*CARTPOLE, *flags, "--output-dir", tmp_path / "run") == 0
    rates = [row["train/learning_rate"] for row in runs.rows(tmp_path / "run")]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_the_rewards_of_all_steps_add_up_to_the_returns_of_all_episodes(tmp_path: Path) -> None:
    sizes = ("--n-steps", 15, "--batch-size", 30, "--total-timesteps", 120)  # 12 episodes of ten steps
    assert train(*FAULT, *sizes, "--output-dir", tmp_path / "run") == 0
    total, before = 0.0, 0
    for row in runs.rows(tmp_path / "run"):
        total += row["rollout/reward_per_step"] * (row["timesteps"] - before)
        before = row["timesteps"]
    assert row["rollout/episodes"] == 12
    assert total == pytest.approx(row["rollout/ep_reward_mean"] * 12)
    assert 0 < total < 120


def test_a_timed_run_stops_at_the_boundary_nearest_to_its_deadline(tmp_path: Path) -> None:
    """The deadline is just behind the second update; a run that trained until then would make a third."""
    seconds, folder = 3.4, tmp_path / "run"
    flags = (*FAULT, "--set", "env.kwargs.delay=0.1", "--duration", seconds / 3600)  # 1.6 s an update
    assert train(*flags, "--output-dir", folder, timed=True) == 0
    record, rows = runs.record(folder), runs.rows(folder)
    before, last, end = [0.0, 0.0, *(row["time/elapsed_seconds"] for row in rows)][-3:]
    margin = 0.5  # writing a row, on a busy machine
    # the next boundary would have been farther away, and the one before was not near enough
    assert end + (end - last) / 2 >= seconds - margin
    assert last + (last - before) / 2 < seconds + margin
    assert record["duration_hours"] * 3600 == pytest.approx(rows[-1]["time/elapsed_seconds"], abs=margin)
    assert record["config"]["training"]["total_timesteps"] is None


def test_a_budget_under_one_rollout_makes_one_update(tmp_path: Path) -> None:
    assert train(*CARTPOLE, "--total-timesteps", 1, "--output-dir", tmp_path / "run") == 0
    assert runs.record(tmp_path / "run")["total_timesteps"] == 64


def test_with_two_budgets_the_first_to_end_ends_the_run(tmp_path: Path) -> None:
    flags = ("--duration", 1.0, "--total-timesteps", 128)
    assert train(*CARTPOLE, *flags, "--output-dir", tmp_path / "run", timed=True) == 0
    assert runs.record(tmp_path / "run")["total_timesteps"] == 128


@pytest.mark.timeout(300)
def test_four_runs_started_in_one_second_have_four_folders(tmp_path: Path) -> None:
    processes = [
        runs.start("train_ppo_sequential.py", *CARTPOLE, "--total-timesteps", 64, cwd=tmp_path)
        for _ in range(4)
    ]
    assert [process.wait(timeout=100) for process in processes] == [0, 0, 0, 0]
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 4
    for folder in folders:
        assert folder.name.startswith("ppo_sequential_CartPole-v1_seed42_")
        assert runs.record(folder)["status"] == "completed"
        assert runs.checkpoint(folder)["counters"]["timesteps"] == 64


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_last_update_and_says_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "run"
    flags = (*FAULT, "--set", "env.kwargs.delay=0.002", "--total-timesteps", 1e6, "--output-dir", folder)
    assert train(*flags, stop_after=3, number=number) == 128 + number
    record = runs.record(folder)
    assert record["status"] == "interrupted"
    assert record["total_updates"] == len(runs.rows(folder)) >= 3
    assert (
        runs.checkpoint(folder, f"step_{record['total_timesteps']}")["counters"]["updates"]
        == record["total_updates"]
    )
    assert not (folder / "checkpoints" / "ppo_sequential_final.pt").exists()


@pytest.mark.timeout(180)
def test_a_second_signal_ends_a_step_that_does_not_end(tmp_path: Path) -> None:
    """The first one waits for the step."""
    inside = tmp_path / "inside"
    hang = ("fault=hang", "at=3", "process=MainProcess", f"marker={inside}")
    process = runs.start(
        "train_ppo_sequential.py", *FAULT, "--env", step_env.ID, "--total-timesteps", 1e6,
        *(part for each in hang for part in ("--set", f"env.kwargs.{each}")),
        "--output-dir", tmp_path / "run",
    )  # fmt: skip
    try:
        runs.wait_until(inside.exists)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 143


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raise", "environment 0 raised at step 3 of update 2: ValueError: the world ended"),
        ("nan", "environment 0 returned reward nan at step 3 of update 2"),
        ("leave", "environment 0 raised at step 3 of update 2: SystemExit: 0"),
        ("interrupt", "one of the environments 0 to 1 raised at step 3 of update 2: KeyboardInterrupt"),
        ("shape", "raised at step 3 of update 2: ValueError: Output array is the wrong shape"),
    ],
)
def test_a_failing_environment_ends_the_run_and_leaves_no_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, message: str
) -> None:
    folder = tmp_path / "run"
    flags = ("--set", f"env.kwargs.fault={kind}", "--total-timesteps", 1000, "--output-dir", folder)
    assert train(*FAULT, *flags) == 1
    assert capsys.readouterr().err.strip().splitlines()[-1].rstrip(": ").endswith(message)
    assert runs.record(folder)["status"] == "failed"
    assert runs.record(folder)["total_updates"] == 2
    assert runs.checkpoint(folder, "step_32")["counters"]["timesteps"] == 32
    for path in folder.glob("checkpoints/*.pt"):
        assert all_finite(torch.load(path, weights_only=True))
    for path in folder.rglob("*.json*"):
        assert "NaN" not in path.read_text()


def all_finite(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(torch.isfinite(value.double()).all())
    if isinstance(value, dict):
        return all(all_finite(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return all(all_finite(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)


def test_a_diverging_run_fails_and_keeps_finite_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    flags = ("--learning-rate", 1e30, "--total-timesteps", 10_000, "--output-dir", folder)
    assert train(*CARTPOLE, *flags) == 1
    assert "diverged" in capsys.readouterr().err
    assert runs.record(folder)["status"] == "failed"
    for path in folder.glob("checkpoints/*.pt"):
        assert all_finite(torch.load(path, weights_only=True)["learner"]["model"])


def test_deleting_the_folder_of_a_running_run_ends_it_with_a_message(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ("--set", "env.kwargs.delay=0.01", "--total-timesteps", 1e6, "--output-dir", folder)
    process = runs.start("train_ppo_sequential.py", *FAULT, *flags)
    runs.wait_for_rows(folder, 2)
    shutil.rmtree(folder)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "was deleted while the run trained" in errors and "Traceback" not in errors
    assert runs.record(folder)["status"] == "interrupted"  # written anew, with the last checkpoint


def test_a_checkpoint_of_another_algorithm_under_this_runs_name_is_refused(tmp_path: Path) -> None:
    path, content = tmp_path / "ppo_sequential_final.pt", {"algorithm": "a2c", "mode": "parallel"}
    with pytest.raises(UsageError, match="is a checkpoint of a2c parallel"):
        config_of_checkpoint(path, content)


def test_a_full_disk_ends_the_run_and_leaves_the_older_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    write, calls = checkpoint_module.write_atomically, []

    def full_at_the_third(path: Path, content: Any) -> None:
        calls.append(path)
        if len(calls) >= 3:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(checkpoint_module, "write_atomically", full_at_the_third)
    flags = ("--set", "logging.checkpoint_interval=1", "--total-timesteps", 1000, "--output-dir", folder)
    assert train(*FAULT, *flags) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert runs.record(folder)["status"] == "failed"
    kept = sorted(path.name for path in folder.glob("checkpoints/*"))
    assert kept == ["ppo_sequential_step_16.pt", "ppo_sequential_step_32.pt"]
    assert runs.checkpoint(folder, "step_32")["counters"]["timesteps"] == 32


@pytest.mark.skipif(
    os.geteuid() != 0 or not sys.platform.startswith("linux"), reason="mounting needs root on Linux"
)
@pytest.mark.timeout(180)
def test_a_file_system_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", disk], check=False).returncode:
        pytest.skip("this container may not mount a tmpfs")
    try:
        result = runs.run(
            "train_ppo_sequential.py", *FAULT, "--set", "logging.checkpoint_interval=1",
            "--set", "logging.keep_checkpoints=100", "--total-timesteps", 1e6, "--output-dir", disk / "run",
        )  # fmt: skip
        assert result.returncode == 1
        assert "No space left on device" in result.stderr
        assert "Traceback" not in result.stderr
        steps = sorted(int(path.stem.rsplit("_", 1)[1]) for path in disk.glob("run/checkpoints/*step*.pt"))
        assert steps
        assert runs.checkpoint(disk / "run", f"step_{steps[-1]}")["counters"]["timesteps"] == steps[-1]
        assert not list(disk.glob("run/checkpoints/.*"))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_that_holds_a_run_is_refused_without_a_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    flags = (*CARTPOLE, "--total-timesteps", 64, "--output-dir", folder)
    assert train(*flags) == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert train(*flags) == 2
    assert "--resume" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoints" / "mine.pt").write_text("mine")
    other = folder / "logs" / "A2C_Parallel"
    other.mkdir()
    (other / "metrics.jsonl").write_text("")
    assert train(*flags, "--seed", 3, "--overwrite") == 0
    assert runs.record(folder)["seed"] == 3
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "checkpoints" / "mine.pt").exists()
    assert not other.exists()


def test_the_final_fps_covers_the_last_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    flags = (*CARTPOLE, "--total-timesteps", 256, "--output-dir", folder)
    assert train(*flags) == 0
    record = runs.record(folder)
    assert record["final_fps"] == pytest.approx(record["average_fps"], rel=0.01)  # shorter than that
    monkeypatch.setattr(recorder_module, "FINAL_FPS_SECONDS", 0.0)
    assert train(*flags, "--overwrite") == 0
    final_fps = runs.record(folder)["final_fps"]
    assert final_fps == pytest.approx(runs.rows(folder)[-1]["time/fps"], abs=0.001)
    assert train(*flags, "--resume") == 0  # it is done: nothing is added, and nothing is forgotten
    assert runs.record(folder)["final_fps"] == final_fps


def test_a_run_that_fails_after_locking_its_folder_writes_a_failed_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise RunError("no room for metrics")

    monkeypatch.setattr(recorder_module, "MetricsWriter", refuse)
    flags = (*CARTPOLE, "--total-timesteps", 64, "--output-dir", tmp_path / "run")
    assert train(*flags) == 1
    assert "no room for metrics" in capsys.readouterr().err
    record = runs.record(tmp_path / "run")
    assert (record["status"], record["total_timesteps"]) == ("failed", 0)


def test_overwriting_keeps_other_runs_in_shared_folders(tmp_path: Path) -> None:
    checkpoints, logs = tmp_path / "checkpoints", tmp_path / "logs"
    flags = (*CARTPOLE, "--total-timesteps", 64, "--output-dir", tmp_path / "run")
    flags = (*flags, "--checkpoint-dir", checkpoints, "--log-dir", logs)
    assert train(*flags) == 0
    own = checkpoints / "ppo_sequential_final.pt"
    before, others = (
        own.read_bytes(),
        [checkpoints / "impala_parallel_final.pt", logs / "A2C_Parallel/metrics.jsonl"],
    )
    others[1].parent.mkdir()
    for path in others:
        path.write_text("of another run")
    assert train(*flags, "--seed", 3, "--overwrite") == 0
    assert own.read_bytes() != before
    assert [path.read_text() for path in others] == ["of another run"] * 2


def test_a_run_resumes_from_its_checkpoint_folder_in_any_working_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("--total-timesteps", 64, "--output-dir", "run", "--checkpoint-dir", "kept")
    assert train(*CARTPOLE, *flags) == 0
    resume = ("--resume", "--total-timesteps", 128, "--output-dir", tmp_path / "run")
    assert train(*resume, "--checkpoint-dir", "elsewhere") == 2
    assert f"logging.checkpoint_dir = '{tmp_path / 'kept'}' in the run" in capsys.readouterr().err
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    assert train(*resume) == 0
    assert runs.record(tmp_path / "run")["total_timesteps"] == 128
    assert (tmp_path / "kept" / "ppo_sequential_step_64.pt").exists()  # gone on from, not begun anew


def test_a_run_without_a_checkpoint_starts_from_the_beginning_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert train(*CARTPOLE, "--total-timesteps", 64, "--output-dir", folder) == 0
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    assert train("--resume", "--output-dir", folder) == 0
    assert f"no checkpoint in {folder / 'checkpoints'} yet: the run starts from the beginning" in caplog.text
    shutil.rmtree(folder / "checkpoints")
    record = runs.record(folder)
    assert train("--resume", "--total-timesteps", 128, "--output-dir", folder) == 2
    assert "is gone" in capsys.readouterr().err
    assert runs.record(folder) == record


def test_resuming_with_other_settings_is_refused_and_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert train(*CARTPOLE, "--total-timesteps", 64, "--output-dir", folder) == 0
    assert train("--resume", "--gamma", 0.5, "--total-timesteps", 128, "--output-dir", folder) == 2
    assert "training.gamma = 0.999 in the run, 0.5 now" in capsys.readouterr().err
    assert train("--resume", "--output-dir", tmp_path / "nothing") == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_finished_run_resumes_with_a_longer_budget(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert train(*CARTPOLE, "--total-timesteps", 64, "--output-dir", folder) == 0
    assert train("--resume", "--total-timesteps", 128, "--output-dir", folder) == 0
    assert runs.record(folder)["total_timesteps"] == 128
    assert runs.checkpoint(folder)["counters"]["timesteps"] == 128
    assert runs.checkpoint(folder, "step_64")["counters"]["timesteps"] == 64


def test_a_damaged_newest_checkpoint_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    flags = ("--set", "logging.checkpoint_interval=1", "--total-timesteps", 192, "--output-dir", folder)
    assert train(*CARTPOLE, *flags) == 0
    (final,) = folder.glob("checkpoints/*_final.pt")
    final.write_bytes(final.read_bytes()[:1000])
    assert train("--resume", "--total-timesteps", 256, "--output-dir", folder) == 0
    assert "ppo_sequential_final.pt is not a checkpoint, or is damaged" in caplog.text
    assert runs.record(folder)["total_timesteps"] == 256
    assert [row["timesteps"] for row in runs.rows(folder)] == [64, 128, 192, 256]


def test_with_rare_snapshots_the_metrics_end_at_the_last_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = (*CARTPOLE, "--set", "logging.snapshot_seconds=0.2", "--total-timesteps", 1e6)
    assert train(*flags, "--output-dir", folder, stop_after=150) == 130
    record, rows = runs.record(folder), runs.rows(folder)
    assert 0 < record["total_updates"] <= 150
    assert record["total_updates"] == rows[-1]["update"] == len(rows)
    assert record["total_episodes"] == rows[-1]["rollout/episodes"]
    saved = runs.checkpoint(folder, f"step_{record['total_timesteps']}")
    assert saved["counters"]["updates"] == record["total_updates"]
    assert saved["elapsed_seconds"] == pytest.approx(record["duration_hours"] * 3600, abs=1e-4)


def test_the_first_update_after_a_start_or_a_resume_is_not_lost(tmp_path: Path) -> None:
    """With the default time between two states that are kept in memory."""
    folder = tmp_path / "run"
    assert train(*CARTPOLE, "--total-timesteps", 6400, "--output-dir", folder, stop_after=1) == 130
    assert runs.record(folder)["total_updates"] == len(runs.rows(folder)) == 1
    assert train("--resume", "--output-dir", folder, stop_after=2) == 130
    assert runs.record(folder)["total_updates"] == len(runs.rows(folder)) == 2
    assert runs.checkpoint(folder, "step_128")["counters"] == {"updates": 2, "timesteps": 128}


def test_resuming_a_finished_timed_run_makes_no_update(tmp_path: Path) -> None:
    """An update takes 1.6 seconds of 2, so that another one would end farther from the deadline."""
    folder = tmp_path / "run"
    flags = (*FAULT, "--set", "env.kwargs.delay=0.1", "--duration", 2.0 / 3600, "--output-dir", folder)
    assert train(*flags, timed=True) == 0
    assert runs.record(folder)["total_updates"] == 1
    assert train("--resume", "--output-dir", folder, timed=True) == 0
    record = runs.record(folder)
    assert (record["status"], record["total_updates"], len(runs.rows(folder))) == ("completed", 1, 1)


def test_only_the_newest_step_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ("--set", "logging.checkpoint_interval=1", "--set", "logging.keep_checkpoints=2")
    assert train(*CARTPOLE, *flags, "--total-timesteps", 320, "--output-dir", folder) == 0
    steps = sorted(path.name for path in folder.glob("checkpoints/*step*"))
    assert steps == ["ppo_sequential_step_256.pt", "ppo_sequential_step_320.pt"]


def test_checkpoint_and_log_folders_can_be_elsewhere(tmp_path: Path) -> None:
    flags = (
        "--checkpoint-dir",
        tmp_path / "c",
        "--log-dir",
        tmp_path / "l",
        "--output-dir",
        tmp_path / "run",
    )
    assert train(*CARTPOLE, "--total-timesteps", 64, *flags) == 0
    assert (tmp_path / "c" / "ppo_sequential_final.pt").exists()
    assert (tmp_path / "l" / "PPO_Sequential" / "metrics.jsonl").exists()
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("flag", ["--output-dir", "--log-dir", "--checkpoint-dir"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    (tmp_path / "file").write_text("")
    places = {"--output-dir": tmp_path / "run", flag: tmp_path / "file" / "below"}
    flags = [part for pair in places.items() for part in pair]
    assert train(*CARTPOLE, "--total-timesteps", 64, *flags) == 2
    assert "cannot write to" in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.timeout(90)
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_the_second_ctrl_c_shows_where_an_environment_hangs_and_saves_the_run(
    tmp_path: Path, algorithm: str
) -> None:
    folder = tmp_path / "run"
    sizes = {"ppo": FAULT, "a2c": FAULT[:6] + FAULT[10:], "impala": FAULT[:6] + FAULT[10:]}[algorithm]
    settings = ("--set", "env.kwargs.fault=hang", "--set", "env.kwargs.at=40")
    process = runs.start(
        *("train.py", "--algorithm", algorithm, "--mode", "sequential", *sizes, *settings),
        *("--total-timesteps", 1e6, "--output-dir", folder),
    )
    runs.wait_for_rows(folder, 4)  # the environments hang in the fifth update of 8 steps
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Stopped in the middle of this step:" in errors
    assert "fault_env.py" in errors
    assert "time.sleep(10_000)" in errors
    assert "Traceback" not in errors
    record = runs.record(folder)
    assert (record["status"], record["total_updates"]) == ("interrupted", 4)
    (checkpoint,) = folder.glob("checkpoints/*.pt")
    assert torch.load(checkpoint, weights_only=True)["counters"] == {"updates": 4, "timesteps": 64}
