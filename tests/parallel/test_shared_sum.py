"""Sums through shared memory, between threads and between processes that may die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcb.errors import PeerLost
from rlcb.parallel import shared_sum
from rlcb.parallel.shared_sum import SHORT_BYTES, SharedSum, memory_bytes
from rlcb.processes.shared_memory import map_shared, open_shared
from tests import runs

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not shared_sum.is_available(), reason="only for Linux on x86-64"),
]

LONGEST = 4 * 100_003  # bytes; no multiple of the processes or of a cache line


def nothing() -> None: ...


def vector(rank: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank))


def in_threads(ranks: int, work: Callable[[SharedSum], Any], longest: int = LONGEST) -> list[Any]:
    """What `work` returns by rank; the ranks are threads."""
    memory = bytearray(memory_bytes(ranks, longest))
    with ThreadPoolExecutor(ranks) as pool:
        sums = [SharedSum(memory, rank, ranks) for rank in range(ranks)]
        return [future.result(60) for future in [pool.submit(work, each) for each in sums]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 7, SHORT_BYTES // 4, SHORT_BYTES // 4 + 1, LONGEST // 4])
def test_every_process_gets_the_same_sum(ranks: int, size: int) -> None:
    def work(summation: SharedSum) -> torch.Tensor:
        ours = vector(summation.rank, size)
        assert summation.fits(ours)
        for _ in range(20):  # a process must not overtake those that still read
            ours = summation.sum_(vector(summation.rank, size), nothing)
        return ours

    expected = torch.stack([vector(rank, size).double() for rank in range(ranks)]).sum(0)
    first, *others = in_threads(ranks, work)
    assert (first - expected).abs().max() < 1e-5
    assert all(torch.equal(each, first) for each in others)


def test_other_kinds_of_numbers_and_shapes_are_summed() -> None:
    def work(summation: SharedSum) -> tuple[Any, ...]:
        whole = summation.sum_(torch.tensor([summation.rank, 2**40 * summation.rank]), nothing)
        table = summation.sum_(torch.full((3, 2), 0.1, dtype=torch.float64), nothing)
        return whole.tolist(), table.tolist()

    for whole, table in in_threads(3, work):
        assert whole == [3, 3 * 2**40]
        assert table == [[pytest.approx(0.3, abs=1e-15)] * 2] * 3


@pytest.mark.parametrize("size", [5, LONGEST // 4])
def test_the_first_process_continues_the_sum_before_others_read_it(size: int) -> None:
    def work(summation: SharedSum) -> torch.Tensor:
        def further(total: torch.Tensor) -> None:
            assert summation.rank == 0
            time.sleep(0.05)
            total.mul_(10)

        return summation.sum_(torch.ones(size), nothing, further)

    for found in in_threads(3, work):
        assert torch.equal(found, torch.full((size,), 30.0))


def test_the_first_process_gets_the_bytes_of_all_unless_some_do_not_fit() -> None:
    def work(summation: SharedSum) -> list[Any]:
        rank, gathered = summation.rank, []
        for turn in range(20):  # a process must not overwrite what the first one still reads
            gathered.append(summation.gather(bytes([turn, rank]) * (rank + turn), nothing))
        gathered.append(summation.gather(bytes(LONGEST if rank == 1 else 3), nothing))
        return [*gathered, summation.sum_(torch.ones(4), nothing).tolist()]

    first, *others = in_threads(3, work)
    assert first[:20] == [[bytes([turn, rank]) * (rank + turn) for rank in range(3)] for turn in range(20)]
    assert first[20:] == [None, [3.0] * 4]
    assert all(each == [*[[]] * 20, None, [3.0] * 4] for each in others)


def test_what_does_not_fit_is_not_taken() -> None:
    summation = SharedSum(bytearray(memory_bytes(2, 400)), 0, 2)
    assert summation.fits(torch.zeros(100))
    assert not summation.fits(torch.zeros(10_000))
    assert not summation.fits(torch.zeros(0))
    assert not summation.fits(torch.zeros(10, 10).t()[:, :5])


def test_a_process_that_waits_sleeps_and_its_check_ends_the_wait() -> None:
    summation = SharedSum(bytearray(memory_bytes(2, 400)), 0, 2)
    calls = []

    def check() -> None:
        calls.append(time.thread_time())
        if len(calls) == 4:
            raise PeerLost("another worker failed")

    start, busy = time.monotonic(), time.thread_time()
    with pytest.raises(PeerLost):
        summation.sum_(torch.zeros(10), check)
    assert time.monotonic() - start > 3.5 * shared_sum.CHECK_SECONDS
    assert time.thread_time() - busy < 0.05


def test_a_count_beyond_32_bits_goes_on() -> None:
    def work(summation: SharedSum) -> float:
        summation._steps = 2**32 - 3
        start.wait()
        for _ in range(10):
            total = summation.sum_(torch.ones(3), nothing)
        return float(total.sum())

    start = threading.Barrier(2)
    memory = bytearray(memory_bytes(2, 400))
    sums = [SharedSum(memory, rank, 2) for rank in range(2)]
    for each in sums:
        each._steps_of[:] = 2**32 - 3
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, sums)) == [2.0 * 3] * 2


def be_rank(rank: int, descriptor: Any, results: Any) -> None:
    """Sum many vectors in another process; rank 2 is killed in the middle."""
    torch.set_num_threads(1)
    summation = SharedSum(map_shared(descriptor.detach()), rank, 3)

    def check() -> None:
        raise PeerLost("a worker is gone")

    for number in range(1, 200):
        total = summation.sum_(torch.full((50_000,), float(rank + number)), nothing)
        assert torch.equal(total, torch.full_like(total, 3.0 * number + 3))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    results.put((rank, "equal"))
    try:
        summation.sum_(torch.zeros(50_000), check)
    except PeerLost as lost:
        results.put((rank, str(lost)))


def test_processes_sum_and_notice_one_that_is_killed() -> None:
    context = runs.worker_server()
    results, descriptor = context.Queue(), open_shared(memory_bytes(3, 4 * 50_000))
    processes = [
        context.Process(target=be_rank, args=(rank, reduction.DupFd(descriptor), results))
        for rank in range(3)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in range(4)]
    os.close(descriptor)
    for process in processes:
        process.join(30)
    assert {each for each in found if each[1] != "equal"} == {
        (0, "a worker is gone"),
        (1, "a worker is gone"),
    }


def test_workers_of_a_run_sum_through_shared_memory_and_without_it_alike(tmp_path: Path) -> None:
    found = []
    for name, flags in (("shared", ()), ("gloo", ("--set", "parallel.buffer=mmap"))):
        flags = (
            *("--env", "CartPole-v1", "--num-envs", 6, "--n-steps", 16, "--num-workers", 3, "--seed", 1),
            *("--set", "logging.tensorboard=false", "--total-timesteps", 96 * 4, "--batch-size", 48, *flags),
        )
        result = runs.call("train_ppo_parallel.py", *flags, "--output-dir", tmp_path / name)
        assert result.returncode == 0, result.stderr
        found.append(runs.parameters(tmp_path / name))
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)
