"""The lock of a run's folder, the settings that a resumed run may change, and what clearing deletes."""

from __future__ import annotations

import errno
import fcntl
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlcb.cli.flags import make_parser
from rlcb.cli.train import main, make_spec, resolve_config
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.errors import UsageError
from rlcb.training.run_folder import RunFolder, require_same_run
from tests import fault_env, runs

CARTPOLE = (
    *("--env", "CartPole-v1", "--num-envs", 4, "--n-steps", 16, "--batch-size", 32, "--n-epochs", 1),
    *("--num-threads", 1, "--set", "logging.tensorboard=false"),
)
SLOW = (
    *("--env", fault_env.ID, "--num-envs", 4, "--n-steps", 8, "--set", "env.kwargs.delay=0.002"),
    *("--set", "logging.tensorboard=false", "--set", "logging.snapshot_seconds=0"),
)
TAKE = """
import sys, time
from pathlib import Path
from rlcb.config.yaml_file import build_config
from rlcb.training.run_folder import RunFolder

RunFolder(Path(sys.argv[1]), build_config({"algorithm": "ppo", "mode": "sequential"}, "test")).lock()
print("taken", flush=True)
time.sleep(100)
"""


def train(*flags: object) -> int:
    return main("ppo", "sequential", False, [str(flag) for flag in flags])


def impala(*flags: str) -> Config:
    arguments = make_parser("impala", "parallel", timed=False).parse_args(flags)
    return resolve_config(arguments)


@pytest.fixture
def config() -> Config:
    return build_config({"algorithm": "ppo", "mode": "sequential"}, "test")


@pytest.mark.parametrize(
    "setting",
    [
        *("training.total_timesteps=7", "hardware.num_threads=7"),
        *("logging.tensorboard=false", "parallel.timeout_seconds=600", "parallel.check_every=7"),
        *("parallel.buffer=mmap", "parallel.buffer_dir=/scratch/job_7", "impala.max_actor_restarts=7"),
        *("impala.actor_nice=0", "impala.check_unwritten=true"),
    ],
)
def test_a_resumed_run_may_change_these_settings(setting: str) -> None:
    before, now = impala(), impala("--set", setting)
    assert before != now
    require_same_run(before, now)


@pytest.mark.parametrize(
    "setting",
    [
        *("training.gamma=0.5", "impala.max_policy_lag=7", "impala.num_actors=2", "env.num_levels=7"),
        *("model.hidden_size=7", "logging.checkpoint_dir=elsewhere", "logging.log_dir=elsewhere"),
    ],
)
def test_a_resumed_run_must_keep_these_settings(setting: str) -> None:
    with pytest.raises(UsageError, match=setting.partition("=")[0]):
        require_same_run(impala(), impala("--set", setting))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("script", "flags", "number"),
    [
        ("train_ppo_sequential.py", ("--batch-size", 16), signal.SIGKILL),
        ("train_ppo_parallel.py", ("--batch-size", 16, "--num-workers", 2), signal.SIGTERM),
        ("train.py --algorithm a3c --mode parallel", ("--num-workers", 2), signal.SIGTERM),
        (
            "train_impala_parallel.py",
            ("--num-actors", 2, "--set", "impala.num_learners=1"),
            signal.SIGTERM,
        ),
    ],
)
def test_a_running_run_is_neither_resumed_nor_overwritten(
    tmp_path: Path, script: str, flags: tuple[object, ...], number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    flags = (*SLOW, *flags, "--output-dir", folder)
    first = runs.start(script, *flags, "--total-timesteps", 1e7)
    try:
        runs.wait_for_rows(folder, 2)
        config = (folder / "config.yaml").read_bytes()
        for words in (("--resume", "--output-dir", folder), (*flags, "--overwrite")):
            second = runs.call(script, *words)
            assert second.returncode == 2, second.stderr
            last = second.stderr.splitlines()[-1]
            assert f"{folder} is in use by another run (process " in last
            assert f" on {socket.gethostname()})" in last
        assert first.poll() is None
        assert (folder / "config.yaml").read_bytes() == config
    finally:
        first.send_signal(number)
        _, errors = first.communicate(timeout=60)
    assert first.returncode == (-number if number == signal.SIGKILL else 128 + number), errors
    updates = [row["update"] for row in runs.rows(folder)]
    assert updates == sorted(set(updates))
    more = runs.rows(folder)[-1]["timesteps"] + 64
    last = runs.call(script, "--resume", "--total-timesteps", more, "--output-dir", folder)
    assert last.returncode == 0, last.stderr
    assert runs.record(folder)["status"] == "completed"


@pytest.mark.timeout(60)
def test_killing_a_run_frees_its_folder(tmp_path: Path, config: Config) -> None:
    words = [sys.executable, "-c", TAKE, str(tmp_path)]
    with subprocess.Popen(words, cwd=runs.PROJECT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "taken\n"
            with pytest.raises(UsageError, match=f"process {holder.pid} on .*delete .*lock"):
                RunFolder(tmp_path, config).lock()
            # A command refuses before it loads torch or starts a process.
            for mode in ("sequential", "parallel"):
                words = ["--output-dir", str(tmp_path), "--overwrite"]
                with pytest.raises(UsageError, match=f"process {holder.pid} on .*delete .*lock"):
                    make_spec(make_parser("ppo", mode, timed=False).parse_args(words))
        finally:
            holder.kill()
    folder = RunFolder(tmp_path, config)
    folder.refuse_if_in_use()  # takes no lock
    folder.lock()
    folder.lock()  # locked already: no error
    with pytest.raises(UsageError, match="is in use"):
        RunFolder(tmp_path, config).lock()
    folder.close()
    again = RunFolder(tmp_path, config)
    again.lock()
    again.close()


def test_on_a_file_system_without_locks_a_run_warns_and_continues(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = RunFolder(tmp_path, config)
    folder.lock()
    folder.close()
    assert f"cannot lock {tmp_path} (No locks available)" in caplog.text


def test_a_file_as_the_folder_is_refused_with_a_message(tmp_path: Path, config: Config) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write to .*file: it is a file, not a folder"):
        RunFolder(tmp_path / "file", config).lock()


@pytest.mark.parametrize(
    "again", [("--resume", "--total-timesteps", 128), (*CARTPOLE, "--total-timesteps", 64, "--overwrite")]
)
def test_half_written_files_of_a_killed_run_are_deleted(tmp_path: Path, again: tuple[object, ...]) -> None:
    folder = tmp_path / "run"
    assert train(*CARTPOLE, "--total-timesteps", 64, "--output-dir", folder) == 0
    logs, checkpoints = folder / "logs" / "PPO_Sequential", folder / "checkpoints"
    unfinished = [
        *(folder / ".benchmark_metrics.json.7.tmp", folder / ".config.yaml.7.tmp"),
        *(logs / ".metrics.jsonl.7.tmp", checkpoints / ".ppo_sequential_step_64.pt.7.tmp"),
    ]
    others = [folder / ".notes.tmp", checkpoints / ".ppo_sequential_mine.7.tmp", folder / ".mine.7.tmp"]
    for path in (*unfinished, *others):
        path.write_text("half")
    assert train(*again, "--output-dir", folder) == 0
    assert [path.name for path in unfinished if path.exists()] == []
    assert all(path.exists() for path in others)


def test_unfinished_files_of_another_run_in_shared_folders_stay(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    own, other = (checkpoints / f".{name}_step_64.pt.7.tmp" for name in ("ppo_sequential", "impala_parallel"))
    for path in (own, other):
        path.write_text("half")
    settings = {"algorithm": "ppo", "mode": "sequential", "logging": {"checkpoint_dir": str(checkpoints)}}
    RunFolder(tmp_path / "run", build_config(settings, "test")).clear_results()
    assert not own.exists()
    assert other.exists()
