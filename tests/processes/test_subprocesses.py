"""A study and other programs: those that it starts, those that hold the lock, those that are busy."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from rlcb.errors import Interrupted, UsageError
from rlcb.paths import PROJECT
from rlcb.processes import machine_load
from rlcb.processes.machine_lock import Lock
from rlcb.processes.signals import StopSignal
from rlcb.processes.subprocesses import describe_exit, failure_reason, run_logged

pytestmark = pytest.mark.timeout(180)

# Says when it is ready, then counts the signals that it gets until it has got as many as its argument says.
COUNTER = """
import signal, sys, time
got = []
signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
print("ready", flush=True)
while len(got) < int(sys.argv[1]):
    time.sleep(0.01)
print(got, flush=True)
sys.exit(9)
"""


def call(code: str, log: Path, stop: StopSignal, *arguments: str, **options: object) -> int:
    command = [sys.executable, "-c", code, *arguments]
    return run_logged(command, log, stop, lambda pid: None, options.get("on_poll", lambda: None))  # type: ignore[arg-type]


def test_output_of_both_kinds_is_added_to_the_log(tmp_path: Path) -> None:
    code = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
    for _ in range(2):
        assert call(code, tmp_path / "new" / "log", StopSignal(forwards=True)) == 3
    lines = (tmp_path / "new" / "log").read_text().splitlines()
    assert [line for line in lines if not line.startswith("=== ")] == ["one", "two"] * 2
    assert len(lines) == 6


def test_a_killed_program_is_named_by_its_signal(tmp_path: Path) -> None:
    code = call("import os; os.kill(os.getpid(), 9)", tmp_path / "log", StopSignal(forwards=True))
    assert describe_exit(code) == "killed by signal 9 (SIGKILL)"
    assert describe_exit(1) is None


@pytest.mark.parametrize(
    ("sent", "passed_on"),
    [
        ([signal.SIGINT], [signal.SIGINT]),
        ([signal.SIGTERM, signal.SIGINT], [signal.SIGTERM, signal.SIGINT]),
        ([signal.SIGHUP], [signal.SIGTERM]),
    ],
)
def test_signals_are_passed_on_once_each_and_the_program_is_waited_for(
    tmp_path: Path, sent: list[int], passed_on: list[int]
) -> None:
    log, left = tmp_path / "log", list(sent)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored

    def send() -> None:
        if left and "ready" in log.read_text():
            os.kill(os.getpid(), left.pop(0))

    try:
        with StopSignal(forwards=True) as stop:
            code = call(COUNTER, log, stop, str(len(sent)), on_poll=send)
            assert code == 9
            with pytest.raises(Interrupted) as interruption:
                stop.check()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert interruption.value.exit_code == 128 + sent[0]
    assert log.read_text().splitlines()[-1] == str([int(number) for number in passed_on])


def test_a_program_is_ended_when_the_study_fails(tmp_path: Path) -> None:
    pids: list[int] = []

    def fail() -> None:
        raise RuntimeError("a fault of the study")

    with pytest.raises(RuntimeError):
        run_logged(
            [sys.executable, "-c", "import time; time.sleep(99)"],
            tmp_path / "log",
            StopSignal(forwards=True),
            pids.append,
            fail,
        )
    assert not psutil.pid_exists(pids[0])


def test_a_signal_ends_a_rest() -> None:
    with StopSignal(forwards=True) as stop:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        started = time.monotonic()
        with pytest.raises(Interrupted):
            stop.sleep(30)
    assert time.monotonic() - started < 10


def test_an_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal(forwards=True) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            stop.check()
    finally:
        signal.signal(signal.SIGHUP, before)


# --- The lock -----------------------------------------------------------------------------------------------


def test_the_second_is_told_who_is_first_and_gets_the_lock_after(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "lock", "busy"), Lock(tmp_path / "lock", "busy")
    first.acquire(tmp_path / "my study")
    with pytest.raises(UsageError) as error:
        second.acquire(tmp_path / "other")
    assert str(tmp_path / "my study") in str(error.value)
    assert f"pid {os.getpid()}" in str(error.value)
    assert "\n" not in str(error.value)
    first.release()
    second.acquire(tmp_path / "other")
    second.release()


def test_who_waits_gets_the_lock_in_turn(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "lock", "busy"), Lock(tmp_path / "lock", "busy")
    first.acquire(tmp_path)
    said: list[str] = []

    def on_wait(holder: str) -> None:
        said.append(holder)
        first.release()

    second.acquire(tmp_path, on_wait)
    second.release()
    assert len(said) == 1


def test_a_lock_is_held_as_long_as_a_program_goes_on_that_was_started_under_it(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys
from pathlib import Path
from rlcb.processes.machine_lock import Lock
lock = Lock(Path({str(tmp_path / "lock")!r}), "busy")
lock.acquire(Path("my study"))
sleep = [sys.executable, "-c", "import time; time.sleep(50)"]
child = subprocess.Popen(sleep, stdout=subprocess.DEVNULL, pass_fds=[lock.descriptor])
lock.note(child=child.pid)
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=30, check=False, cwd=PROJECT
    )
    child = int(done.stdout)
    lock = Lock(tmp_path / "lock", "busy")
    try:
        with pytest.raises(UsageError, match=f"kill {child} "):
            lock.acquire(tmp_path)
    finally:
        os.kill(child, 9)
    lock.acquire(tmp_path, on_wait=lambda holder: None)
    lock.release()


def test_a_lock_of_something_else_is_named_by_its_file(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match=str(tmp_path / "lock")):
            Lock(tmp_path / "lock", "busy").acquire(tmp_path)


# --- Load ---------------------------------------------------------------------------------------------------


def test_the_busiest_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(
        [
            {1: ("idle", 5.0), 2: ("half", 5.0), 3: ("busy", 5.0), os.getpid(): ("us", 0.0)},
            {1: ("idle", 5.0), 2: ("half", 5.1), 3: ("busy", 5.2), 4: ("new", 9.0), os.getpid(): ("us", 1.0)},
        ]
    )
    monkeypatch.setattr(machine_load, "_cpu_seconds", lambda: next(seconds))
    load = machine_load.measure_load(0.2)
    assert [each["name"] for each in load["busiest"]] == ["busy", "half"]
    assert load["busiest"][0]["cpu_percent"] == pytest.approx(2 * load["busiest"][1]["cpu_percent"], rel=0.01)
    assert 0 <= load["cpu_percent"] <= 100


def test_only_a_busy_machine_is_warned_about() -> None:
    load = {"cpu_percent": 3.0, "busiest": []}
    assert machine_load.busy_warning(load) is None
    load = {"cpu_percent": 54.0, "busiest": [{"pid": 12, "name": "firefox", "cpu_percent": 100.0}]}
    warning = machine_load.busy_warning(load)
    assert warning is not None
    assert "54 %" in warning and "firefox, pid 12" in warning


@pytest.mark.parametrize(("for_all_users", "mode"), [(True, 0o666), (False, 0o644)])
def test_only_the_lock_of_the_machine_may_be_written_by_all_users(
    tmp_path: Path, for_all_users: bool, mode: int
) -> None:
    before = os.umask(0)
    try:
        lock = Lock(tmp_path / "lock", "busy", for_all_users=for_all_users)
        lock.acquire(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == mode
    other = Lock(tmp_path / "lock", "busy", for_all_users=for_all_users)
    with pytest.raises(UsageError, match=f"busy: the study in {tmp_path}") as refused:
        other.acquire(tmp_path)
    assert ("set RL_BENCHMARK_LOCK to another file" in str(refused.value)) == for_all_users
    lock.release()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "collecting\ntrain_timed.py: failed: environment 3: the world ended\n",
            "environment 3: the world ended",
        ),
        ("train_timed.py: error: cannot make it\n\n", "cannot make it"),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("=== 2026 train.py\n", "it printed nothing"),
    ],
)
def test_the_reason_of_a_failure_is_the_last_message_in_the_log(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "log").write_text(text)
    assert failure_reason(tmp_path / "log") == reason
