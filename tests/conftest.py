"""Shared settings and fixtures: one torch thread, deterministic Hypothesis, ranks simulated by threads."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import settings

from rlcb.rl.communicator import Communicator

torch.set_num_threads(1)  # small networks gain nothing from more
settings.register_profile("tests", deadline=None, derandomize=True)
settings.load_profile("tests")
# Commands under test start in 2.4 instead of 2.75 s of CPU time if they may cache their bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # pytest was started in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the commands under test would inherit it


class ThreadCommunicator(Communicator):
    """A rank that runs in a thread. A sum waits for all ranks and adds their tensors in rank order."""

    def __init__(self, rank: int, tensors: list[torch.Tensor], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.world_size = len(tensors)
        self._tensors = tensors
        self._barrier = barrier

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        self._tensors[self.rank] = tensor.clone()
        self._barrier.wait()
        total = torch.stack(self._tensors).sum(0)
        self._barrier.wait()
        return tensor.copy_(total)


@pytest.fixture
def run_ranks() -> Callable[[int, Callable[[Communicator], Any]], list[Any]]:
    """Run a function once per rank, in threads with a ThreadCommunicator; return the results by rank."""

    def run(world_size: int, function: Callable[[Communicator], Any]) -> list[Any]:
        tensors = [torch.zeros(())] * world_size
        barrier = threading.Barrier(world_size, timeout=30)
        with ThreadPoolExecutor(world_size) as pool:
            ranks = [ThreadCommunicator(rank, tensors, barrier) for rank in range(world_size)]
            return [future.result() for future in [pool.submit(function, rank) for rank in ranks]]

    return run
