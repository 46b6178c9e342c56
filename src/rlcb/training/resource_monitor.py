"""Measures memory and CPU use of a run's process tree, in a background thread."""

from __future__ import annotations

import contextlib
import threading
import time

import psutil

from rlcb.cpu import allowed_cpus, usable_cores

MOST_OF_A_CORE = 0.01  # that samples may take


def _tree(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and all of its descendants."""
    return [root, *root.children(recursive=True)]


def memory_bytes(process: psutil.Process) -> int:
    """Return a process's proportional set size: private pages plus its part of the shared pages.

    Returns the resident set size where the system does not report the proportional one.
    """
    info = process.memory_full_info()
    return int(getattr(info, "pss", 0) or info.rss)


def busy_seconds() -> float:
    """Return the busy seconds since boot of the CPUs that this process may use, for all programs together.

    Includes steal time, during which the CPUs work for other virtual machines.
    """
    times = psutil.cpu_times(percpu=True)
    working = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(
        getattr(each, name, 0.0)
        for cpu, each in enumerate(times)
        if cpu in allowed_cpus()
        for name in working
    )


class ResourceMonitor:
    """Samples memory (GB) and CPU use (per cent of the usable cores) of a process tree, in a thread.

    Shared pages count once. For a sample the kernel walks through the pages of every process, 4 ms for a
    worker of 0.7 GB. So with many workers there are fewer samples (MOST_OF_A_CORE), or the worker of this
    thread would keep the others waiting.
    """

    def __init__(self, interval_seconds: float, root_process: int | None = None) -> None:
        """`root_process` is the process ID of the root of the tree; None: this process."""
        self.interval_seconds = interval_seconds
        self.memory_gb = 0.0
        self.peak_gb = 0.0
        self.cpu_percent = 0.0
        self._memory_sum = 0.0
        self._samples = 0
        self._sample_seconds = 0.0
        self._cores = usable_cores()
        self._root = psutil.Process(root_process)
        self._seen: dict[tuple[int, float], float] = {}
        self._started = time.perf_counter()
        self._last = (self._started, self._cpu_seconds())
        self._first_cpu_seconds = self._last[1]
        self._first_busy_seconds, self._busy_since = busy_seconds(), time.perf_counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resource-monitor", daemon=True)

    def _cpu_seconds(self) -> float:
        """Return the CPU seconds of the tree. Ended processes count with their last measured value."""
        for process in _tree(self._root):
            with contextlib.suppress(psutil.Error):  # the process ended after it was listed
                times = process.cpu_times()
                self._seen[process.pid, process.create_time()] = times.user + times.system
        return sum(self._seen.values())

    def sample(self) -> None:
        """Take one sample now."""
        begun, memory = time.perf_counter(), 0
        for process in _tree(self._root):
            with contextlib.suppress(psutil.Error):
                memory += memory_bytes(process)
        now, cpu_seconds = time.perf_counter(), self._cpu_seconds()
        before, cpu_before = self._last
        if now > before:
            self.cpu_percent = max(0.0, 100 * (cpu_seconds - cpu_before) / (now - before) / self._cores)
        self._last = (now, cpu_seconds)
        self.memory_gb = memory / 2**30
        self.peak_gb = max(self.peak_gb, self.memory_gb)
        self._memory_sum += self.memory_gb
        self._samples += 1
        self._sample_seconds = time.perf_counter() - begun

    def pause(self) -> float:
        """Return the seconds until the next sample."""
        return max(self.interval_seconds, self._sample_seconds / MOST_OF_A_CORE)

    def _run(self) -> None:
        while not self._stop.wait(self.pause()):
            self.sample()

    def start(self) -> None:
        """Take a sample and start the thread."""
        self.sample()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and take a last sample."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.sample()

    def usage(self) -> dict[str, float]:
        """Return `resource_usage` of benchmark_metrics.json: memory of the tree, and the mean CPU use of the
        tree and of all other programs since the start.

        The kernel counts busy time in ticks, so over a short time the share of other programs can come out
        above 100 %, or below 0: it is limited to that range.
        """
        seconds = time.perf_counter() - self._started
        cpu_seconds = self._cpu_seconds() - self._first_cpu_seconds
        others = busy_seconds() - self._first_busy_seconds - cpu_seconds
        busy_span = time.perf_counter() - self._busy_since
        others_percent = 100 * others / busy_span / len(allowed_cpus())
        return {
            "peak_memory_gb": round(self.peak_gb, 4),
            "average_memory_gb": round(self._memory_sum / max(1, self._samples), 4),
            "average_cpu_percent": round(max(0.0, 100 * cpu_seconds / seconds / self._cores), 2),
            "others_cpu_percent": round(min(100.0, max(0.0, others_percent)), 2),
        }
