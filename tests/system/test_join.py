"""`rlcb join` as users call it: whole runs that are fed by actors of another machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlcb.cli.join import main, parse_address
from rlcb.errors import UsageError
from rlcb.parallel.remote_tally import SETTLE_SECONDS
from tests import runs, step_env
from tests.cluster_runs import free_port
from tests.impala_runs import of_env
from tests.impala_team import N_STEPS

pytestmark = [pytest.mark.timeout(200), pytest.mark.slow]
TRAIN = "train.py --algorithm impala --mode parallel"
# One local actor, batches of three unrolls, so nine slots; endless.
RUN = (
    *("--env", step_env.ID, "--num-envs", 2, "--n-steps", N_STEPS, "--batch-size", 6 * N_STEPS),
    *("--set", "impala.num_actors=1", "--set", "impala.num_learners=1", "--set", "logging.tensorboard=false"),
    *("--set", "impala.check_unwritten=true", "--set", "logging.snapshot_seconds=0"),
    *("--total-timesteps", 1e7),
)


@contextlib.contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A command of this project that is killed, with all of its processes, if it still runs at the end."""
    process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=runs.PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{runs.PROJECT / 'src'}{os.pathsep}{runs.PROJECT}"},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.communicate()


def learner(folder: Path, port: int, *flags: object) -> Any:
    gentle = of_env(slow="all", delay=0.001)  # of 1,000 updates a second a test would see too many
    return running(*TRAIN.split(), *RUN, "--accept-actors", port, "--output-dir", folder, *gentle, *flags)


def joiner(port: int, *flags: object) -> Any:
    return running("-m", "rlcb", "join", f"127.0.0.1:{port}", *flags)


def wait_for_actors(folder: Path, number: int, timeout: float = 60) -> None:
    """Wait until the run says that so many remote actors are connected."""

    def connected() -> bool:
        return bool(list(folder.glob("logs/*/metrics.jsonl"))) and newest(folder) == number

    runs.wait_until(connected, timeout, f"the run did not have {number} remote actors")


def newest(folder: Path) -> int:
    (path,) = folder.glob("logs/*/metrics.jsonl")
    found = re.findall(r'"impala/remote_actors": (\d+)', path.read_text())
    return int(found[-1]) if found else -1


def wait_for_more_rows(folder: Path, more: int) -> None:
    runs.wait_for_rows(folder, len(runs.rows(folder)) + more)


def actors_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The actor processes of a machine that joined."""
    return runs.worker_origin(process.pid).children()


def end(process: subprocess.Popen[str], number: int | None = None) -> tuple[int, str, str]:
    """Send a signal, wait for the end, and return exit code, stdout and stderr."""
    if number is not None:
        process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def require_sound(folder: Path) -> dict[str, Any]:
    """No unroll was older than allowed and every row counts whole batches; returns the record."""
    for number, row in enumerate(runs.rows(folder), 1):
        assert row["update"] == number
        assert row["timesteps"] == 6 * N_STEPS * number
        assert row["impala/policy_lag_max"] <= 2
        assert row["rollout/ep_length_mean"] == N_STEPS
    record = runs.record(folder)
    assert sum(record["impala"]["remote"]["unrolls"].values()) == 3 * record["total_updates"]
    return record


def test_actors_come_fall_silent_die_and_leave_while_updates_go_on(tmp_path: Path) -> None:
    folder, port = tmp_path / "run", free_port()
    with learner(folder, port) as run, joiner(port, "--num-actors", 2) as first:
        wait_for_actors(folder, 2)
        time.sleep(SETTLE_SECONDS + 1)  # for longer than it takes to be told who came
        stopped, killed = actors_of(first)
        stopped.send_signal(signal.SIGSTOP)
        wait_for_more_rows(folder, 40)  # more than the slots that it does not hold allow
        killed.send_signal(signal.SIGKILL)
        with joiner(port, "--num-actors", 1) as second:
            wait_for_actors(folder, 3)  # the one that stands still, one in the place of the dead, the new one
            stopped.send_signal(signal.SIGCONT)
            wait_for_more_rows(folder, 40)
            code, output, errors = end(second, signal.SIGTERM)
            assert code == 143, errors
            assert output.startswith(f"Joined {step_env.ID} at 127.0.0.1:{port}: 1 actor of 2 environments\n")
        wait_for_actors(folder, 2)
        wait_for_more_rows(folder, 10)
        code, output, errors = end(run, signal.SIGTERM)
        assert code == 143, errors
        code, told, errors = end(first, signal.SIGINT)
        assert code == 130, errors
    assert "killed" not in errors.replace("ended with exit code -9; replaced by a new one (1 of 3)", "")
    assert f"The run at 127.0.0.1:{port} was stopped" in told
    record = require_sound(folder)
    remote = record["impala"]["remote"]
    assert remote["unrolls_late"] >= 1  # that of the one that stood still
    (other,) = [count for host, count in remote["unrolls"].items() if host.endswith(" (joined)")]
    assert other > 20
    assert [each["actors"] for each in remote["events"]][:2] == [2, 3] or remote["events"][0]["actors"] == 2
    assert re.search(r"actor node \S+ \(joined\) joined: 2 actors, 3 in all", output)
    assert runs.processes_of(folder) == []


def test_a_joined_machine_waits_for_a_killed_run_and_takes_part_when_it_is_resumed(tmp_path: Path) -> None:
    folder, port = tmp_path / "run", free_port()
    with joiner(port, "--num-actors", 1, "--wait", "90s") as machine:
        with learner(folder, port, "--set", "logging.checkpoint_interval=10") as run:
            wait_for_actors(folder, 1)
            time.sleep(SETTLE_SECONDS + 1)
            run.kill()
        begun = len(runs.rows(folder))
        script, *flags = TRAIN.split()
        with running(script, *flags, "--output-dir", folder, "--resume") as again:
            runs.wait_until(lambda: len(runs.rows(folder)) > begun, 60)
            wait_for_actors(folder, 1)
            time.sleep(SETTLE_SECONDS + 1)
            code, _, errors = end(again, signal.SIGTERM)
            assert code == 143, errors
        code, output, errors = end(machine, signal.SIGTERM)
    assert code == 143, errors
    assert output.count("Joined") == 2
    record = require_sound(folder)
    assert [each["actors"] for each in record["impala"]["remote"]["events"]] == [1, 1]


def test_a_slow_remote_actor_holds_nobody_up_for_long(tmp_path: Path) -> None:
    """It takes 3.2 s for an unroll, the others 10 ms: its slot goes to another, and it rests."""
    folder, port = tmp_path / "run", free_port()
    flags = of_env(slow="actor-1", delay=0.4)  # of a machine that joins: the run has no actor 1
    with learner(folder, port, *flags) as run, joiner(port, "--num-actors", 2) as machine:
        wait_for_actors(folder, 2)
        runs.wait_until(lambda: runs.rows(folder)[-1]["impala/unrolls_late"] >= 2, 60)
        assert end(run, signal.SIGTERM)[0] == 143
        end(machine, signal.SIGTERM)
    require_sound(folder)
    rows = [row for row in runs.rows(folder) if row["impala/remote_actors"] == 2]
    seconds = rows[-1]["time/elapsed_seconds"] - rows[0]["time/elapsed_seconds"]
    assert len(rows) / seconds > 9  # nine slots would be used once in 3.2 s if it held everybody up


def test_when_the_run_is_complete_the_command_ends_with_0(tmp_path: Path) -> None:
    folder, port = tmp_path / "run", free_port()
    with (
        joiner(port, "--num-actors", 1) as machine,
        learner(folder, port, "--total-timesteps", 6 * N_STEPS * 150) as run,
    ):
        assert end(run)[0] == 0
        code, output, errors = end(machine)
    assert code == 0, errors
    assert f"Waiting for a run at 127.0.0.1:{port} (" in output
    assert f"The run at 127.0.0.1:{port} is complete" in output
    assert require_sound(folder)["total_updates"] == 150


def test_an_environment_that_fails_ends_the_command_and_not_the_run(tmp_path: Path) -> None:
    folder, port = tmp_path / "run", free_port()
    flags = of_env(fault="raise", process="actor-1", at=6)  # of a machine that joins: the run has no actor 1
    with learner(folder, port, *flags) as run, joiner(port, "--num-actors", 2) as machine:
        code, _, errors = end(machine)
        wait_for_more_rows(folder, 10)
        assert end(run, signal.SIGTERM)[0] == 143
    assert code == 1
    assert "actor 1: environment" in errors
    assert "replaced by a new one (3 of 3)" in errors
    last = errors.strip().splitlines()[-1]
    assert last.startswith("rlcb join: failed: actor 1: environment "), last
    assert last.endswith("3 actors had been replaced before (impala.max_actor_restarts)")
    require_sound(folder)


def test_a_learner_that_does_not_come_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert main([f"127.0.0.1:{port}", "--wait", "0"]) == 1
    assert f"no run answered at 127.0.0.1:{port} within 0 seconds (" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["gpu1", "gpu1:", ":29600", "gpu1:0", "gpu1:70000", "gpu1:x"])
def test_an_address_without_host_or_port_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([text]) == 2
    assert f"{text!r}: expected HOST:PORT, such as gpu1:29600" in capsys.readouterr().err


def test_addresses_are_names_ipv4_and_ipv6() -> None:
    assert parse_address("gpu1:29600") == ("gpu1", 29600)
    assert parse_address("[fd00::1]:29600") == ("fd00::1", 29600)
    with pytest.raises(UsageError):
        parse_address("fd00::1")


def test_no_actors_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu1:29600", "--num-actors", "0"]) == 2
    assert "--num-actors 0: must be at least 1" in capsys.readouterr().err


def test_the_main_process_of_a_joined_machine_does_not_load_torch() -> None:
    code = "import sys, rlcb.cli.join, rlcb.parallel.join; assert 'torch' not in sys.modules"
    result = runs.run_words([sys.executable, "-c", code], runs.PROJECT)
    assert result.returncode == 0, result.stderr
