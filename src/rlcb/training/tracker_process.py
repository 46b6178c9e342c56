"""The process that feeds an experiment tracker, beside the run that it tracks.

It reads the rows from the run's metrics.jsonl, so the training loop never waits for a tracker, whose calls
take seconds if the network or the disk is slow. Started by
training/tracking.py with one line of JSON on standard input, the job. A second line ends the tracking in
order; the end of standard input means that the run is gone. What happens is in the job's `folder`:
state.json and output.log.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcb.errors import first_line
from rlcb.files import write_json
from rlcb.processes.signals import StopSignal
from rlcb.processes.subprocesses import kill_descendants
from rlcb.training.trackers import Tracker, open_tracker

POLL_SECONDS = 1.0  # between two looks for new rows
NICENESS = 10  # the run's own processes have the cores first


class State:
    """The content of state.json: what is tracked where, how far, and whether it works."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.path = Path(job["folder"], "state.json")
        kept = {key: job[key] for key in ("tracker", "project", "name", "group", "id", "timesteps", "rows")}
        self.content: dict[str, Any] = {**kept, "status": "starting", "place": None, "problem": None}

    def update(self, **changes: Any) -> None:
        """Change the state and write it to disk."""
        self.content |= changes
        write_json(self.path, self.content)


class TimeLimit:
    """Ends this process if a call of the tracker takes too long: a thread waits with the clock in hand."""

    def __init__(self, state: State, seconds: float) -> None:
        self.state, self.seconds = state, seconds
        self._call: tuple[str, float] | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Context manager around a call; `what` names it in the message."""
        self._call = what, time.monotonic() + self.seconds
        try:
            yield
        finally:
            self._call = None

    def _watch(self) -> None:
        while True:
            time.sleep(min(0.2, self.seconds / 4))
            call = self._call
            if call is not None and time.monotonic() > call[1]:
                self.state.update(status="failed", problem=f"{call[0]} took longer than {self.seconds:g} s")
                leave(1)


class Rows:
    """Reads the new rows of a metrics.jsonl that another process writes, and that may be replaced."""

    def __init__(self, path: Path, timesteps: int) -> None:
        """Rows up to `timesteps` have been tracked before."""
        self.path, self.timesteps = path, timesteps
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the complete rows that are new, without their missing values."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0  # the file was replaced by a shorter one
                file.seek(self._offset)
                lines = file.read()
        except FileNotFoundError:
            return
        for line in lines.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                return
            self._offset += len(line)
            try:
                row = json.loads(line)
            except ValueError:  # a damaged line, or the file was replaced: known rows are skipped below
                self._offset = 0
                return
            if row["timesteps"] > self.timesteps:
                self.timesteps = row["timesteps"]
                yield {key: value for key, value in row.items() if value is not None}


class Inbox:
    """The lines on standard input."""

    def __init__(self) -> None:
        self._buffer = b""
        self._parent = os.getppid()

    def line(self, seconds: float) -> str | None:
        """Return the next line; "" if the parent process is gone, None if no line comes within `seconds`."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if os.getppid() != self._parent:
                return ""
            if left <= 0 or not select.select([0], [], [], left)[0]:
                return None
            data = os.read(0, 1 << 16)
            if not data:
                return ""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


def main() -> None:
    """Track one run, or add facts to a tracked run, as the job on standard input says."""
    StopSignal.ignore()  # a signal to all processes of the run must not cut off its last rows
    os.nice(NICENESS)
    inbox = Inbox()
    job = json.loads(inbox.line(10.0) or "null")
    if job is None:
        return
    state = State(job)
    limit = TimeLimit(state, job["timeout_seconds"])
    try:
        with limit.on("its start"):
            tracker = open_tracker(job)
        state.update(status="running", place=tracker.place)
        ending = track(job, tracker, inbox, state, limit)
        with limit.on("its end"):
            tracker.log_facts(ending["facts"], max(state.content["timesteps"], ending.get("timesteps", 0)))
            for name, path in ending.get("pictures", {}).items():
                tracker.log_picture(name, Path(path))
            tracker.close(ending["exit_code"])
        state.update(status="finished")
    except BaseException as error:
        traceback.print_exc()
        state.update(status="failed", problem=f"{type(error).__name__}: {first_line(error)}")
        leave(1)
    leave(0)


def track(
    job: Mapping[str, Any], tracker: Tracker, inbox: Inbox, state: State, limit: TimeLimit
) -> dict[str, Any]:
    """Log rows until the run says how it ended, or is gone; return its last message."""
    rows = Rows(Path(job["rows_path"]), job["timesteps"]) if job["rows_path"] is not None else None
    line: str | None = None
    while True:
        count = 0
        for row in rows.new() if rows is not None else ():
            with limit.on("a row"):
                tracker.log_row(row)
            count += 1
        if rows is not None and count:
            state.update(rows=state.content["rows"] + count, timesteps=rows.timesteps)
        if line is not None:  # it came before the rows were read, so all are logged
            return json.loads(line) if line else {"facts": {}, "exit_code": 1}
        line = inbox.line(POLL_SECONDS)


def leave(code: int) -> None:
    """End this process and those that the tracker started."""
    sys.stdout.flush()
    sys.stderr.flush()
    kill_descendants(os.getpid())
    os._exit(code)


if __name__ == "__main__":
    main()
