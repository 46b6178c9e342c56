"""Memory and CPU time of a process tree, measured on processes started for the tests."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from rlcb.cpu import allowed_cpus, usable_cores
from rlcb.training.resource_monitor import ResourceMonitor
from tests import runs

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="proportional set sizes are Linux's"),
]

MB = 2**20
SHARED = 128 * MB

# Maps a file, touches every page, says so, and stays until its input ends.
MAPPING_CHILD = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
total = sum(memory[i] for i in range(0, len(memory), 4096))
print(total, flush=True)
sys.stdin.read()
"""
BUSY_CHILD = "print('ready', flush=True)\nwhile True: pass"


@contextmanager
def child(code: str, *arguments: str) -> Iterator[str]:
    """A process of its own; gives the first line that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate(timeout=30)


def memory_mb(monitor: ResourceMonitor) -> float:
    monitor.sample()
    return monitor.memory_gb * 1024


def test_pages_that_two_processes_share_count_once(tmp_path: Path) -> None:
    monitor = ResourceMonitor(10)
    path = tmp_path / "shared"
    with path.open("w+b") as file:
        file.truncate(SHARED)
        before = memory_mb(monitor)
        with mmap.mmap(file.fileno(), SHARED) as shared:
            np.frombuffer(shared, np.uint8)[:] = 1
            mapped_once = memory_mb(monitor)
            with child("print('ready', flush=True); input()"):
                python_itself = memory_mb(monitor) - mapped_once
            with child(MAPPING_CHILD, str(path)) as total:
                assert int(total) == SHARED // 4096
                mapped_twice = memory_mb(monitor)
    assert mapped_once - before == pytest.approx(SHARED / MB, abs=20)
    assert mapped_twice - mapped_once - python_itself < 0.3 * SHARED / MB  # a second copy would be all of it


def test_private_memory_of_a_child_counts() -> None:
    monitor = ResourceMonitor(10)
    before = memory_mb(monitor)
    # With a wide margin: what earlier tests leave behind may be given back meanwhile.
    with child("memory = bytearray(b'x') * (400 << 20); print('ready', flush=True); input()"):
        assert memory_mb(monitor) - before > 300
    assert memory_mb(monitor) - before < 100  # and no longer once it is gone
    assert monitor.peak_gb * 1024 - before > 300  # but the peak stays


def test_a_busy_process_counts_and_a_sleeping_one_does_not() -> None:
    monitor = ResourceMonitor(10)
    monitor.sample()
    time.sleep(0.5)
    monitor.sample()
    asleep = monitor.cpu_percent
    enough = asleep + 20 / usable_cores()  # of one core
    busy, deadline = 0.0, time.monotonic() + 30  # on a machine that others may use as well
    with child(BUSY_CHILD):
        while busy <= enough and time.monotonic() < deadline:
            monitor.sample()
            time.sleep(0.5)
            monitor.sample()
            busy = monitor.cpu_percent
    assert asleep < 30 / usable_cores()
    assert enough < busy < 130


def test_cpu_use_of_other_programs_is_measured_separately() -> None:
    with child("import os; print(os.getpid(), flush=True); input()") as idle:
        monitor, own = ResourceMonitor(10, int(idle)), ResourceMonitor(10)
        begun, used = time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < 2 or time.process_time() - used < 0.5:
            pass
        seconds, spent = time.perf_counter() - begun, time.process_time() - used
        usage, own_usage = monitor.usage(), own.usage()
    share = 100 * spent / seconds / len(allowed_cpus())
    assert usage["others_cpu_percent"] > 0.8 * share - 1  # to this child, its parent is another program
    assert usage["average_cpu_percent"] < 1
    assert own_usage["others_cpu_percent"] < usage["others_cpu_percent"] - 0.5 * share


@pytest.mark.parametrize(("ticks", "percent"), [(1e6, 100), (-1e6, 0)])
def test_the_share_of_other_programs_is_between_nothing_and_the_whole_machine(
    monkeypatch: pytest.MonkeyPatch, ticks: float, percent: float
) -> None:
    monitor = ResourceMonitor(10)
    before = monitor._first_busy_seconds
    monkeypatch.setattr("rlcb.training.resource_monitor.busy_seconds", lambda: before + ticks)
    assert monitor.usage()["others_cpu_percent"] == percent


def test_the_time_of_a_process_that_has_ended_still_counts() -> None:
    monitor = ResourceMonitor(10)
    started = time.perf_counter()
    with child("import os; print(os.getpid(), flush=True)\nwhile True: pass") as number:
        busy = psutil.Process(int(number))
        runs.wait_until(lambda: busy.cpu_times().user > 1)
        used = monitor._cpu_seconds()
    seconds = time.perf_counter() - started
    assert monitor._cpu_seconds() >= used  # far more than this process takes meanwhile
    assert monitor.usage()["average_cpu_percent"] >= 100 / (seconds + 1) / usable_cores()


def test_the_background_thread_samples_until_it_is_stopped() -> None:
    monitor = ResourceMonitor(0.02)
    monitor.start()
    base = monitor.memory_gb  # there from the first moment on
    assert base > 0
    block = np.ones(512 * MB, np.uint8)  # much more than what earlier tests leave to be given back meanwhile
    deadline = time.monotonic() + 20
    while monitor.memory_gb < base + 0.25 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert monitor.memory_gb >= base + 0.25
    del block
    monitor.stop()
    peak = monitor.peak_gb
    assert peak >= monitor.memory_gb
    time.sleep(0.1)
    assert monitor.peak_gb == peak
    usage = monitor.usage()
    assert usage.keys() == {
        "peak_memory_gb",
        "average_memory_gb",
        "average_cpu_percent",
        "others_cpu_percent",
    }
    assert 0 < usage["average_memory_gb"] <= usage["peak_memory_gb"] == round(peak, 4)
    assert usage["average_cpu_percent"] >= 0


@pytest.mark.parametrize(("seconds", "pause"), [(0.004, 2.0), (0.25, 25.0)])
def test_samples_of_many_processes_are_rarer(
    seconds: float, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = ResourceMonitor(2.0)
    now = [100.0]
    monkeypatch.setattr("rlcb.training.resource_monitor.time.perf_counter", lambda: now[0])

    def slow(process: psutil.Process) -> int:
        now[0] += seconds
        return MB

    monkeypatch.setattr("rlcb.training.resource_monitor.memory_bytes", slow)
    monkeypatch.setattr("rlcb.training.resource_monitor._tree", lambda root: [root])
    monitor.sample()
    assert monitor.pause() == pytest.approx(pause)


def test_processes_that_start_and_end_meanwhile_raise_no_error() -> None:
    monitor = ResourceMonitor(0.001)
    monitor.start()
    for _ in range(5):
        subprocess.run([sys.executable, "-S", "-c", ""], check=True, timeout=30)
    assert monitor._thread.is_alive()
    monitor.stop()


def test_a_monitor_that_was_never_started_can_be_stopped() -> None:
    ResourceMonitor(10).stop()
