"""The programs that a study starts: output into a log file, signals passed on, none left behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from rlcb.errors import Interrupted, RunError

POLL_SECONDS = 0.25
KILL_AFTER_SECONDS = 60.0  # for a program to end once the study itself failed


class Stop:
    """Context in which signals are collected, to be passed on to the program that runs at that moment.

    Programs get a session of their own, so a Ctrl-C at the terminal reaches the study alone, which passes it
    on once. A second one follows the first: it ends the program at once.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in self.SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it for SIGHUP
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self.received:
            raise Interrupted(self.received[0])

    def sleep(self, seconds: float, on_poll: Callable[[float], None] = lambda left: None) -> None:
        """Wait; a signal ends it at once. `on_poll` gets the seconds that are left."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            on_poll(left)
            time.sleep(min(POLL_SECONDS, left))
        self.check()


def run_logged(
    command: Sequence[str],
    log: Path,
    stop: Stop,
    on_start: Callable[[int], None],
    on_poll: Callable[[], None],
    descriptors: Sequence[int] = (),
) -> int:
    """Run a program to its end, its output added to `log`; returns its exit code, negative for a signal.

    A signal that comes meanwhile is passed on, and the program is waited for. `descriptors` stay open in it:
    a lock is then held until it has ended, whatever happens to this process.
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


def _wait(process: subprocess.Popen[bytes], stop: Stop, on_poll: Callable[[], None]) -> int:
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
    """End a program that nobody waits for any more: politely, then at once."""
    process.terminate()
    try:
        process.wait(KILL_AFTER_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def describe_exit(code: int) -> str | None:
    """What a negative exit code means, None for the others."""
    if code >= 0:
        return None
    with contextlib.suppress(ValueError):
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"killed by signal {-code}"
