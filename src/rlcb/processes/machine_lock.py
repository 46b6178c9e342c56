"""A lock that a program holds together with those it starts; the system frees it when the last one ends."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from rlcb.errors import RunError, UsageError

PATH_VARIABLE = "RL_BENCHMARK_LOCK"
POLL_SECONDS = 0.5


def machine_lock_path() -> Path:
    """The file whose lock says that a study runs on this machine: one for all users."""
    return Path(os.environ.get(PATH_VARIABLE) or "/tmp/rl-cluster-benchmark.lock")


class Lock:
    """An exclusive flock on a file, which says who holds it. Of two that want it, one gets it."""

    def __init__(self, path: Path, why: str, what: str = "study", for_all_users: bool = False) -> None:
        """`why` begins the error message if another program holds the lock. `what` names the holder's work in
        its folder. With `for_all_users`, every user may write the file, as the machine's lock needs."""
        self.path, self.why, self.what, self.for_all_users = path, why, what, for_all_users
        self.descriptor: int | None = None
        self._facts: dict[str, Any] = {}

    def acquire(self, study: Path, on_wait: Callable[[str], None] | None = None) -> None:
        """Take the lock. If it is held, raises UsageError that names the holder, or with `on_wait` waits;
        that is called over and over with the holder in words, and may raise."""
        descriptor = self._open()
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = self._describe_holder(descriptor)
            except OSError as error:  # a file system without locks
                os.close(descriptor)
                raise RunError(f"cannot lock {self.path}: {error.strerror or error}") from error
            if on_wait is None:
                os.close(descriptor)
                raise UsageError(f"{self.why}: {holder}{self._way_on()}")
            on_wait(holder)
            time.sleep(POLL_SECONDS)
        self.descriptor = descriptor
        self.note(
            what=self.what, study=str(study.absolute()), pid=os.getpid(), user=_user(),
            host=socket.gethostname(), since=time.strftime("%Y-%m-%d %H:%M:%S"),
        )  # fmt: skip

    def note(self, **facts: Any) -> None:
        """Say more of the holder in the file."""
        assert self.descriptor is not None
        self._facts |= facts
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps(self._facts).encode(), 0)

    def release(self) -> None:
        if self.descriptor is not None:
            os.ftruncate(self.descriptor, 0)
            os.close(self.descriptor)
            self.descriptor = None

    def _open(self) -> int:
        try:
            try:
                # Without O_CREAT: the kernel forbids that for another user's file in /tmp.
                return os.open(self.path, os.O_RDWR | os.O_NOFOLLOW)
            except FileNotFoundError:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
                if self.for_all_users:
                    os.fchmod(descriptor, 0o666)  # whatever the umask says
                return descriptor
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"cannot lock {self.path}: {why}{self._way_on()}") from error

    def _way_on(self) -> str:
        """Return what a user can do whose work another user's lock stops."""
        if not self.for_all_users:
            return ""
        return f"; wait for its end, or set {PATH_VARIABLE} to another file to measure at the same time"

    def _describe_holder(self, descriptor: int) -> str:
        try:
            facts = json.loads(os.pread(descriptor, 4096, 0))
        except ValueError:
            facts = {}
        if not isinstance(facts, dict) or "study" not in facts:
            return f"another program holds {self.path}"
        who = f"the {facts.get('what', 'study')} in {facts['study']} (pid {facts.get('pid')}"
        who += f", {facts.get('user')}, since {facts.get('since')})"
        here = facts.get("host") == socket.gethostname()
        child = facts.get("child")
        if here and child is not None and not psutil.pid_exists(facts["pid"]):
            return f"a run that {who} started still goes on after it was killed: kill {child} ends it safely"
        return f"{who} is running on this machine" if here else f"{who} is running on {facts.get('host')}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return str(os.getuid())
