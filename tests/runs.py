"""Running the training scripts as a user does, and reading what they left."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
import torch

from rlcb.cli import evaluate, prepared_run, train_distributed
from rlcb.parallel import supervisor
from rlcb.parallel.forkserver import worker_context

PROJECT = Path(__file__).resolve().parent.parent
SHARED = Path("/dev/shm")


def command(script: str, *arguments: object) -> list[str]:
    """Return the words that run a script of the project's folder; `script` may carry flags itself."""
    name, *flags = script.split()
    return [sys.executable, str(PROJECT / name), *flags, *map(str, arguments)]


def run(
    script: str, *arguments: object, timeout: float = 90, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, in the project's folder unless `cwd` says otherwise."""
    options.setdefault("cwd", PROJECT)
    return subprocess.run(
        command(script, *arguments), capture_output=True, text=True, timeout=timeout, check=False, **options
    )


_worker_output: list[IO[bytes]] = []
"""What workers of this process print, on stdout and stderr, once they have a server."""


def call(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script to its end in this process, which has everything loaded already.

    Workers are forks of one server for all tests of this process. So no interpreter starts and loads torch,
    which takes two seconds of CPU time.
    """
    name, *flags = script.split()
    output, errors = io.StringIO(), io.StringIO()
    warnings = logging.StreamHandler(errors)
    warnings.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    start = [file.seek(0, os.SEEK_END) for file in _worker_output] or [0, 0]
    logging.getLogger().addHandler(warnings)
    try:
        work = partial(runpy.run_path, str(PROJECT / name), run_name="__main__")
        code = run_in_process(name, [*flags, *map(str, arguments)], work, output, errors)
    finally:
        logging.getLogger().removeHandler(warnings)
    printed = ["", ""]
    for number, file in enumerate(_worker_output):
        file.seek(start[number])
        printed[number] = file.read().decode()
    return subprocess.CompletedProcess(
        [name, *flags], code, output.getvalue() + printed[0], printed[1] + errors.getvalue()
    )


def worker_server(env_id: str = "") -> ForkServerContext:
    """Start the server that workers of this process fork from, whatever their environment; return its
    context. What workers print goes into `_worker_output`."""
    if not _worker_output:
        if forkserver._forkserver._forkserver_pid is not None:  # of a test that did not need the output
            forkserver._forkserver._stop()
        _worker_output.extend(tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115  # stay open
        kept = os.dup(1), os.dup(2)
        try:
            for number, file in enumerate(_worker_output, 1):
                fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)  # wherever `call` reads
                os.dup2(file.fileno(), number)
            worker_context("coinrun")  # loads the pictures of Procgen as well
        finally:
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
    return multiprocessing.get_context("forkserver")


def run_in_process(
    name: str, flags: Sequence[str], work: Callable[[], Any], output: io.StringIO, errors: io.StringIO
) -> int:
    """Call `work`, which runs the script or module `name` in this process; return its exit code."""
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        patch.setattr(sys, "argv", [str(PROJECT / name), *flags])
        patch.setattr(os, "_exit", sys.exit)
        patch.setattr(train_distributed, "remove_socket_folder", lambda: None)  # this process goes on
        patch.setattr(supervisor, "worker_context", worker_server)
        for module in (prepared_run, evaluate):  # torch is loaded already
            patch.setattr(module, "prepare_process", lambda *_, **__: 1)
        try:
            code = work()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return code if isinstance(code, int) else 0


def run_words(words: list[str], cwd: Path, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in `cwd`; it finds this project's package and tests."""
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT / 'src'}{os.pathsep}{PROJECT}"}
    return subprocess.run(
        words, capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd, env=environment
    )


def start(script: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    options.setdefault("cwd", PROJECT)
    return subprocess.Popen(
        command(script, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("logs/*/metrics.jsonl")
    complete = path.read_text().split("\n")[:-1]  # the last line may still be being written
    return [json.loads(line) for line in complete]


def wait_until(condition: Callable[[], bool], timeout: float = 60, what: str = "it did not come") -> None:
    """Wait for a state that other threads or processes bring about."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} within {timeout:g} s"
        time.sleep(0.05)


def wait_for_rows(folder: Path, count: int, timeout: float = 60) -> None:
    """Wait until a running run has written `count` rows."""

    def written() -> bool:
        return any(path.read_text().count("\n") >= count for path in folder.glob("logs/*/metrics.jsonl"))

    wait_until(written, timeout, f"{folder} had no {count} rows")


def record(folder: Path) -> dict[str, Any]:
    """benchmark_metrics.json, read as strict JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in benchmark_metrics.json")

    return json.loads((folder / "benchmark_metrics.json").read_text(), parse_constant=refuse)


def checkpoint(folder: Path, kind: str = "final") -> dict[str, Any]:
    (path,) = folder.glob(f"checkpoints/*_{kind}.pt")
    return torch.load(path, weights_only=True)


def parameters(folder: Path, kind: str = "final") -> torch.Tensor:
    """All parameters of a checkpoint in one vector."""
    return torch.cat([each.flatten() for each in checkpoint(folder, kind)["learner"]["model"].values()])


def processes_of(folder: Path) -> list[psutil.Process]:
    """Living processes whose command line or environment names a run's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            named = str(folder) in " ".join(process.cmdline()) or process.environ().get("RUN") == str(folder)
            if named and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def worker_origin(pid: int) -> psutil.Process:
    """The process that the workers of the run `pid` are forks of, and children."""
    (origin,) = [each for each in psutil.Process(pid).children() if "forkserver" in " ".join(each.cmdline())]
    return origin


def shared_files() -> set[str]:
    return {path.name for path in SHARED.iterdir()} if SHARED.is_dir() else set()


def left_in_shared_memory(before: set[str]) -> set[str]:
    """Files that a run has left in /dev/shm: new ones that no living process has mapped, and that stay.

    Other runs on the machine may have files there as well, for as long as they go on.
    """
    new, deadline = shared_files() - before, time.monotonic() + 10
    while new and time.monotonic() < deadline:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                new -= {Path(each.path).name for each in process.memory_maps()}
        new &= shared_files()
        time.sleep(0.1)
    return new
