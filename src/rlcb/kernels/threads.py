"""The threads of the native kernels: as many as torch uses (torch.set_num_threads), without OpenMP."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


class Threads:
    """Divides numbered tasks among threads. The calling thread is one of them."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def run(self, tasks: int, work: Callable[[int, int], None]) -> None:
        """Call work(worker, task) for all tasks. Raises what a task raises.

        Which worker gets a task depends on the numbers alone, so that sums are the same every time.
        """
        workers = min(torch.get_num_threads(), tasks)

        def share(worker: int) -> None:
            for task in range(worker, tasks, workers):
                work(worker, task)

        if workers <= 1:
            return share(0) if tasks else None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(workers - 1, "rlcb-kernels")
        others = [self._pool.submit(share, worker) for worker in range(1, workers)]
        share(0)
        for other in others:
            other.result()
