"""Traces one update of a run with torch.profiler, operator by operator.

The run loop (training/run.py) and an IMPALA actor (parallel/impala_actor.py) wrap each update or unroll in
the context manager that `maybe_profile` returns. It does nothing unless `RunSpec.trace_folder` is set;
profiling/trace.py sets it for its short runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from rlcb.files import write_json

TRACED_CALL = 2  # the first call warms up


def maybe_profile(folder: Path | None, name: str) -> Callable[[], AbstractContextManager[None]]:
    """Return a function whose result wraps one update: `with profile_update(): ...`.

    With a folder, the second update is traced into `<name>.json`, a Chrome trace, and `<name>.operators`, a
    JSON object: `seconds` of the update, and `operators` with `name`, `calls` and `seconds` (without nested
    operators) of each. Call this before the run starts: the profiler takes a second to load, and meanwhile
    other A3C workers would make the updates that are to be traced.
    """
    return contextlib.nullcontext if folder is None else UpdateProfiler(folder, name)


class UpdateProfiler:
    """Counts the wrapped updates and traces the TRACED_CALL-th one."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.calls = 0
        with profile(activities=[ProfilerActivity.CPU]):
            pass  # loads the profiler

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        self.calls += 1
        if self.calls != TRACED_CALL:
            yield
            return
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            start = time.perf_counter()
            yield
            seconds = time.perf_counter() - start
        profiler.export_chrome_trace(str(self.folder / f"{self.name}.json"))
        operators = [
            {"name": operator.key, "calls": operator.count, "seconds": operator.self_cpu_time_total / 1e6}
            for operator in profiler.key_averages()
        ]
        write_json(self.folder / f"{self.name}.operators", {"seconds": seconds, "operators": operators})
