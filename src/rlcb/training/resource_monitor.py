"""Memory and CPU time of a run: the whole process tree, sampled in the background."""

from __future__ import annotations

import contextlib
import threading
import time

import psutil

from rlcb.cpu import allowed_cpus, usable_cores


def _tree(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def memory_bytes(process: psutil.Process) -> int:
    """Proportional set size: private pages and this process's share of shared ones. Resident size where
    unknown."""
    info = process.memory_full_info()
    return int(getattr(info, "pss", 0) or info.rss)


def busy_seconds() -> float:
    """Seconds that the logical CPUs which this process may use have worked, for any program or as another
    virtual machine's, since the machine started."""
    times = psutil.cpu_times(percpu=True)
    working = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(
        getattr(each, name, 0.0)
        for cpu, each in enumerate(times)
        if cpu in allowed_cpus()
        for name in working
    )


class ResourceMonitor:
    """Samples memory (GB, shared pages counted once) and CPU use (per cent of the usable cores) of the
    process tree, and what other programs use.

    One sample reads a file of /proc for each process: about a millisecond for each gigabyte that it maps.
    """

    def __init__(self, interval_seconds: float, root_process: int | None = None) -> None:
        """`root_process` is the process whose tree is measured; None: this one."""
        self.interval_seconds = interval_seconds
        self.memory_gb = 0.0
        self.peak_gb = 0.0
        self.cpu_percent = 0.0
        self._memory_sum = 0.0
        self._samples = 0
        self._cores = usable_cores()
        self._root = psutil.Process(root_process)
        self._seen: dict[tuple[int, float], float] = {}
        self._started = time.perf_counter()
        self._last = (self._started, self._cpu_seconds())
        self._first_cpu_seconds = self._last[1]
        self._first_busy_seconds = busy_seconds()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resource-monitor", daemon=True)

    def _cpu_seconds(self) -> float:
        """Of the tree's processes, those that have ended by now included: as much as was last seen of
        them."""
        for process in _tree(self._root):
            with contextlib.suppress(psutil.Error):  # it ended between being listed and being read
                times = process.cpu_times()
                self._seen[process.pid, process.create_time()] = times.user + times.system
        return sum(self._seen.values())

    def sample(self) -> None:
        """Take one sample now."""
        memory = 0
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

    def _run(self) -> None:
        while not self._stop.wait(self.interval_seconds):
            self.sample()

    def start(self) -> None:
        self.sample()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.sample()

    def usage(self) -> dict[str, float]:
        """The metrics of benchmark_metrics.json: peak and average memory, average CPU use since the start."""
        seconds = time.perf_counter() - self._started
        own = self._cpu_seconds() - self._first_cpu_seconds
        others = busy_seconds() - self._first_busy_seconds - own
        return {
            "peak_memory_gb": round(self.peak_gb, 4),
            "average_memory_gb": round(self._memory_sum / max(1, self._samples), 4),
            "average_cpu_percent": round(max(0.0, 100 * own / seconds / self._cores), 2),
            "others_cpu_percent": round(max(0.0, 100 * others / seconds / len(allowed_cpus())), 2),
        }
