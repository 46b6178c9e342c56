"""One measurement: start a program, watch how far it gets and how much memory it takes, end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from perf.peers.cases import OWN, SIDES, Case, Side
from perf.peers.install import PeerUnavailable, python_of
from perf.peers.programs.protocol import MARK
from perf.training_runs import environment
from rlcb import cpu
from rlcb.errors import RunError
from rlcb.paths import IMPORT_ROOT, PROJECT
from rlcb.software import describe_software
from rlcb.training.resource_monitor import ResourceMonitor

WARM_SECONDS = 3.0  # of training that are not counted, and at least the first update
MAX_SECONDS = 600.0  # until a program must have come to the end of its window
POLL_SECONDS = 0.5
END_SECONDS = 60.0  # for a run of this project to save and leave
PEER_END_SECONDS = 10.0  # for a peer to leave; it has nothing to save


class Point(NamedTuple):
    """The end of an update."""

    seconds: float
    """Since training began."""
    timesteps: int


@dataclass(frozen=True)
class Measurement:
    """The measurements of one program."""

    fps: float
    """Timesteps by seconds in the window, everything included."""
    updates: int
    seconds: float
    peak_memory_mb: float
    """Proportional set size of all its processes."""
    others_percent: float
    """Of the processor's time that other programs took meanwhile."""
    versions: dict[str, str]
    threads: int | None = None
    """That a peer says it computes with; this project's are in its settings."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Window:
    """The least seconds and updates that a measurement takes."""

    seconds: float = 20.0
    updates: int = 2

    def of(self, points: Sequence[Point]) -> tuple[Point, Point, int] | None:
        """The first and the last point of the window and the updates between them; None as long as it is not
        full.

        It begins at the first end of an update after WARM_SECONDS of training.
        """
        first = next((index for index, each in enumerate(points) if each.seconds >= WARM_SECONDS), None)
        if first is None:
            return None
        begin, end, updates = points[first], points[-1], len(points) - 1 - first
        full = updates >= self.updates and end.seconds - begin.seconds >= self.seconds
        return (begin, end, updates) if full else None


class Program:
    """A running program of a side, and what it has said."""

    def __init__(self, side: Side, case: Case, folder: Path) -> None:
        self.side = side
        self.case = case
        self.folder = folder
        python = Path(sys.executable) if side.peer == OWN else python_of(side.peer)
        self.output, self.errors = folder / "stdout", folder / "stderr"
        with self.output.open("wb") as out, self.errors.open("wb") as err:
            self.process = subprocess.Popen(
                side.command(case, python, folder),
                stdout=out,
                stderr=err,
                cwd=PROJECT,
                env={**self.surroundings(), "TMPDIR": str(folder)},  # what it leaves goes with the folder
                start_new_session=True,
            )

    def surroundings(self) -> dict[str, str]:
        """The environment variables. They tell a peer where this package is, which its program imports, and
        the cores that this project counts: torch by itself does not see how many a container may use."""
        if self.side.own_rows:
            return environment()
        return {**environment(), "PYTHONPATH": IMPORT_ROOT, "OMP_NUM_THREADS": str(cpu.usable_cores())}

    def said(self) -> list[dict[str, Any]]:
        lines = self.output.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]

    def points(self) -> list[Point]:
        """The ends of the updates so far."""
        if not self.side.own_rows:
            return [Point(each["seconds"], each["timesteps"]) for each in self.said()[1:]]
        rows = [
            json.loads(line)
            for path in self.folder.glob("run/logs/*/metrics.jsonl")
            for line in path.read_text(encoding="utf-8").split("\n")[:-1]
        ]
        return [Point(row["time/elapsed_seconds"], row["timesteps"]) for row in rows]

    def versions(self) -> dict[str, str]:
        """The versions of the program's packages; empty until it has reported them.

        Raises RunError if its network has another size than this project's.
        """
        if self.side.own_rows:
            return {name: version for name, version in describe_software().items() if version is not None}
        for announced in self.said()[:1]:
            if announced["parameters"] != self.case.num_parameters:
                raise RunError(
                    f"{self.side.title} has a network of {announced['parameters']:,} parameters for "
                    f"{self.case.name}, this project one of {self.case.num_parameters:,}: no comparison"
                )
            return dict(announced["versions"])
        return {}

    def threads(self) -> int | None:
        """The number of threads that the program has reported; None before."""
        return None if self.side.own_rows else next((each["threads"] for each in self.said()[:1]), None)

    def require_alive(self) -> None:
        if self.process.poll() is None:
            return
        lines = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = lines[-1] if lines else "it said nothing"
        raise PeerUnavailable(f"{self.side.title} ended with code {self.process.returncode}: {said}")

    def end(self) -> None:
        """Ask it to end, and see to it that none of its processes is left.

        This project's first process tells its others; of a peer all are told, and Python's tracker of
        semaphores, which does not listen, has time to tidy up after them.
        """
        group = self.process.pid
        with contextlib.suppress(ProcessLookupError):
            if self.side.own_rows:
                self.process.terminate()
            else:
                os.killpg(group, signal.SIGTERM)
            deadline = time.monotonic() + (END_SECONDS if self.side.own_rows else PEER_END_SECONDS)
            while time.monotonic() < deadline:
                self.process.poll()  # or it would count as one of the group
                os.killpg(group, 0)
                time.sleep(POLL_SECONDS / 5)
            os.killpg(group, signal.SIGKILL)
        self.process.wait()


def measure(side_name: str, case: Case, window: Window) -> Measurement:
    """Run a side of a case until its window is full. Raises PeerUnavailable if it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        program = Program(SIDES[side_name], case, Path(folder))
        try:
            return watch(program, window)
        finally:
            program.end()


def watch(program: Program, window: Window) -> Measurement:
    deadline = time.monotonic() + MAX_SECONDS
    monitor = ResourceMonitor(POLL_SECONDS, program.process.pid)
    versions: dict[str, str] = {}
    while time.monotonic() < deadline:
        program.require_alive()
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended, which is noticed above
            monitor.sample()
        versions = versions or program.versions()
        found = window.of(program.points())
        if found is not None:
            begin, end, updates = found
            seconds = end.seconds - begin.seconds
            fps = (end.timesteps - begin.timesteps) / seconds
            others = monitor.usage()["others_cpu_percent"]
            memory = monitor.peak_gb * 1024
            return Measurement(fps, updates, seconds, memory, others, versions, program.threads())
        time.sleep(POLL_SECONDS)
    raise PeerUnavailable(f"{program.side.title} did not get through its window in {MAX_SECONDS:g} s")
