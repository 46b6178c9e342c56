"""Run an external program to its end, with its output in a log file.

Studies, profiles and measurements run whole commands this way. Such a program is no worker: it has no pipe
and no heartbeat, handles stop signals itself, and tells by its exit code how it ended. A worker is a function
in a child process of the same run (child_process.py).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rlcb.errors import RunError
from rlcb.processes.signals import POLL_SECONDS, StopSignal

TAIL_BYTES = 16 * 1024  # enough for the end of a traceback, or for several rows of metrics.jsonl
KILL_AFTER_SECONDS = 60.0  # between SIGTERM and SIGKILL when this process itself failed


def run_logged(
    command: Sequence[str],
    log: Path,
    stop: StopSignal,
    on_start: Callable[[int], None],
    on_poll: Callable[[], None],
    descriptors: Sequence[int] = (),
) -> int:
    """Run a program, append its output to `log`, and return its exit code, negative if a signal killed it.

    Signals that `stop` receives are passed on to the program, once each (SIGHUP as SIGTERM), and the program
    is waited for. It runs in a session of its own, so a Ctrl-C at the terminal reaches only this process.
    `on_start` gets the process id; `on_poll` is called several times a second. File `descriptors` stay open
    in the program: a lock is then held until it has ended, whatever happens to this process. If a callback
    raises, the program is ended. Raises RunError if it cannot be started.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            output.write(f"=== {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(command)}\n".encode())
            output.flush()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=descriptors,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
    except OSError as error:
        raise RunError(f"cannot start {command[0]} with {log}: {error.strerror or error}") from error
    try:
        on_start(process.pid)
        return _wait(process, stop, on_poll)
    except BaseException:
        _end(process)
        raise


def _wait(process: subprocess.Popen[bytes], stop: StopSignal, on_poll: Callable[[], None]) -> int:
    passed_on = 0
    while True:
        for number in stop.received[passed_on:]:
            passed_on += 1
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            on_poll()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, and SIGKILL if the program is still there after KILL_AFTER_SECONDS."""
    process.terminate()
    try:
        process.wait(KILL_AFTER_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_descendants(pid: int) -> None:
    """Kill all processes that the process `pid` has started, directly or not, but not itself."""
    import psutil  # not needed for the other functions, and takes 20 ms to import

    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()


def describe_exit(code: int) -> str | None:
    """Name the signal behind a negative exit code; None for other codes."""
    if code >= 0:
        return None
    with contextlib.suppress(ValueError):
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"killed by signal {-code}"


def tail(path: Path) -> list[str]:
    """Return the lines in the last 16 KB of a text file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []


def failure_reason(log: Path) -> str:
    """Return the error message at the end of a program's log, or else its last line."""
    lines = [line.strip() for line in tail(log) if line.strip() and not line.startswith("=== ")]
    errors = [line for line in lines if ": error: " in line or ": failed: " in line]
    if errors and errors[-1] in lines[-3:]:
        return errors[-1].partition(": error: ")[2] or errors[-1].partition(": failed: ")[2]
    return lines[-1] if lines else "it printed nothing"
