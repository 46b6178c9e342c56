"""Processes that measure at the same time: what they answer, and how they fail."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

from rlcb.errors import Interrupted, RunError, UsageError
from rlcb.processes import measurement_pool
from rlcb.processes.measurement_pool import Measurers

BENCH = "tests.measuring_bench:Bench"

pytestmark = pytest.mark.timeout(180)


def measurers(count: int = 2, check_stop: Callable[[], None] = lambda: None, **options: float) -> Measurers:
    return Measurers(count, BENCH, (3,), check_stop, advice="; try another one", **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = set(psutil.Process().children())
    yield
    left = {each for each in psutil.Process().children() if each not in before}
    assert not {each for each in left if "spawn_main" in " ".join(each.cmdline())}


def test_every_process_answers_and_keeps_what_it_made() -> None:
    with measurers() as asked:
        assert asked.ask("times", 5) == [15, 15]
        assert asked.ask("times", 5, count=1) == [15]
        assert asked.ask_each("times", [(1,), (2,)]) == [3, 6]
        assert asked.ask("asked_before") == [3, 2]


def test_they_measure_at_the_same_time_in_processes_of_their_own(tmp_path: Path) -> None:
    with measurers() as asked:
        (first, first_met), (second, second_met) = asked.ask("meet", str(tmp_path), 2)
    assert len({first, second, os.getpid()}) == 3
    assert first_met and second_met


def test_no_process_starts_with_signals_that_could_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_tracker, "_resource_tracker", resource_tracker.ResourceTracker())
    monkeypatch.setattr(resource_tracker, "ensure_running", resource_tracker._resource_tracker.ensure_running)
    monkeypatch.setattr(resource_tracker, "getfd", resource_tracker._resource_tracker.getfd)
    with measurers() as asked:
        for process in asked.processes:
            status = Path(f"/proc/{process.pid}/status").read_text()
            masks = re.findall(r"Sig(?:Blk|Ign):\s+(\w+)", status)
            for number in (signal.SIGINT, signal.SIGTERM):
                assert any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def test_each_has_one_thread() -> None:
    with measurers(1) as asked:
        assert asked.ask("threads") == ["1"]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("refuse", UsageError, "^there is no such environment$"),
        ("fail", RunError, "^measuring fail: ValueError: seven is not even; try another one$"),
        ("die", RunError, "^a process died while it measured die; try another one$"),
        ("nonsense", RunError, "AttributeError"),
    ],
)
def test_a_failure_is_told_in_one_line(name: str, kind: type[Exception], words: str) -> None:
    with measurers() as asked, pytest.raises(kind, match=words):
        asked.ask(name)


def test_a_process_that_has_died_cannot_be_asked_again() -> None:
    with measurers(1) as asked:
        with pytest.raises(RunError):
            asked.ask("die")
        asked.processes[0].join()
        with pytest.raises(RunError, match="died"):
            asked.ask("times", 1)


def test_one_that_hangs_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    with measurers(1) as asked:
        asked.ask("times", 1)  # so that it has begun
        monkeypatch.setattr(measurement_pool, "ANSWER_SECONDS", 0.5)
        with pytest.raises(RunError, match="measuring hang took too long; try another"):
            asked.ask("hang")


def test_all_answers_together_have_a_limit() -> None:
    with measurers(1, limit_seconds=0.5) as asked, pytest.raises(RunError, match="took too long"):
        asked.ask("hang")


def test_a_signal_ends_the_wait() -> None:
    begun = time.monotonic()

    def stop() -> None:
        if time.monotonic() - begun > 0.3:
            raise Interrupted(15)

    with measurers(1, stop) as asked, pytest.raises(Interrupted):
        asked.ask("hang")
