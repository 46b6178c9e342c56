"""How busy the machine is before a run begins."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import psutil

INTERVAL_SECONDS = 1.0
BUSY_PERCENT = 10.0  # of the cores that a run may use; figures of runs vary by about as much anyway


def measure_load(seconds: float = INTERVAL_SECONDS) -> dict[str, Any]:
    """What is going on during `seconds`: the share in use of the logical CPUs that this process may use, the
    busiest programs (percent of one CPU), load averages, free memory. Called while nothing of ours runs: the
    load average still remembers the run before, the measured share does not."""
    before, started = _cpu_seconds(), time.monotonic()
    psutil.cpu_percent(percpu=True)
    time.sleep(seconds)
    shares, elapsed = psutil.cpu_percent(percpu=True), time.monotonic() - started
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(len(shares))
    ours = [shares[cpu] for cpu in allowed if cpu < len(shares)] or shares
    used: list[dict[str, Any]] = [
        {"pid": pid, "name": name, "cpu_percent": round(100 * (total - before[pid][1]) / elapsed, 1)}
        for pid, (name, total) in _cpu_seconds().items()
        if pid in before and pid != os.getpid()
    ]
    used.sort(key=lambda each: each["cpu_percent"], reverse=True)
    return {
        "cpu_percent": round(sum(ours) / len(ours), 1),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "available_memory_gb": round(psutil.virtual_memory().available / 2**30, 2),
        "busiest": [each for each in used[:3] if each["cpu_percent"] >= 5],
    }


def _cpu_seconds() -> dict[int, tuple[str, float]]:
    """Name and used CPU seconds of every process, by its id."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = (process.name(), times.user + times.system)
    return found


def busy_warning(load: dict[str, Any]) -> str | None:
    """A line that warns of a busy machine, None if it is idle."""
    if load["cpu_percent"] < BUSY_PERCENT:
        return None
    share = f"{load['cpu_percent']:.0f} % of the cores"
    most = [f" ({each['name']}, pid {each['pid']})" for each in load["busiest"][:1]]
    return f"warning: busy machine, others use {share}{''.join(most)}"
