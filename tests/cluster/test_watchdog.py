"""Ranks that leave, fall silent or are asked to stop: all end with the same words. Ranks are threads here."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from rlcb.cluster import watchdog
from rlcb.cluster.rendezvous import join_world, post_refusal
from rlcb.cluster.watchdog import Watchdog, run_bounded
from rlcb.errors import Interrupted, PeerLost, RunError, UsageError
from rlcb.parallel.world import World
from rlcb.training.worker_context import WorkerContext
from tests import runs
from tests.node_context import NodeContext

pytestmark = pytest.mark.timeout(180)
WORLD = World("hand", num_nodes=3, node_rank=0, num_workers=1, local_rank=0, master_addr="x", master_port=1)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, but later than a thread may be that others keep from its core."""
    monkeypatch.setattr(watchdog, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(watchdog, "DECIDE_SECONDS", 4.0)
    monkeypatch.setattr(watchdog, "STOP_SECONDS", 0.3)


@pytest.fixture
def ranks() -> Iterator[Callable[..., list[Watchdog]]]:
    """Makes three ranks, each with a context of its own if the test gives one. Only such ranks may hang."""
    made: list[Watchdog] = []
    reported: list[str] = []

    def make(timeout_seconds: float = 30.0, **contexts: NodeContext) -> list[Watchdog]:
        store = HashStore()
        for rank in range(3):
            for key, value in (("beat", "0"), ("left", "")):
                store.set(f"{key}/{rank}", value)
        for rank in range(3):
            world, names = replace(WORLD, node_rank=rank), [f"rank {each} on h{each}" for each in range(3)]
            context = contexts.get(f"rank_{rank}", NodeContext(hangs=reported))
            made.append(Watchdog(lambda: store, world, names, timeout_seconds, context))
        return made

    yield make
    for watch in made:
        watch._closed.set()
    assert reported == []


def ends(watches: list[Watchdog]) -> list[Exception]:
    """What each rank is ended by, when all of them check again and again."""

    def work(watch: Watchdog) -> Exception:
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            try:
                watch.check()
            except Exception as error:
                return error
            time.sleep(0.02)
        raise AssertionError("nothing ended it")

    with ThreadPoolExecutor(len(watches)) as pool:
        return list(pool.map(work, watches))


def kill(watch: Watchdog) -> None:
    watch._closed.set()


def test_a_rank_that_raises_is_quoted_by_all_others(ranks: Callable[..., list[Watchdog]]) -> None:
    watches = ranks()
    watches[2].fail("run", "rank 2 on h2: the world ended")
    for error in ends(watches[:2]):
        assert isinstance(error, PeerLost)
        assert str(error) == "rank 2 on h2: the world ended"


def test_a_usage_error_of_one_rank_is_one_of_all(ranks: Callable[..., list[Watchdog]]) -> None:
    watches = ranks()
    watches[1].fail("usage", "no such world")
    assert [(type(error), str(error)) for error in ends([watches[0], watches[2]])] == [
        (UsageError, "no such world"),
        (UsageError, "no such world"),
    ]


@pytest.mark.parametrize(("kind", "error"), [("run", PeerLost), ("usage", UsageError)])
def test_all_are_told_why_a_process_failed_that_is_no_rank(
    ranks: Callable[..., list[Watchdog]], kind: str, error: type[Exception]
) -> None:
    context = NodeContext(cause=(kind, "actor 5 on h2: the world ended"))
    for each in ends(ranks(rank_2=context)):
        assert type(each) is error
        assert str(each) == "actor 5 on h2: the world ended"


def test_a_rank_that_was_killed_is_named_once_a_connection_breaks(
    ranks: Callable[..., list[Watchdog]],
) -> None:
    watches = ranks()
    kill(watches[1])
    with ThreadPoolExecutor(2) as pool:
        broken = PeerLost("connection reset")
        errors = list(pool.map(lambda rank: watches[rank].agree(broken), (0, 2)))
    assert [str(error) for error in errors] == [
        "rank 1 on h1 is gone: killed, or cut off from the network"
    ] * 2


def test_a_silent_rank_is_noticed_by_the_clock(ranks: Callable[..., list[Watchdog]]) -> None:
    watches = ranks(timeout_seconds=3.0)
    kill(watches[2])
    for error in ends(watches[:2]):
        assert "rank 2 on h2 is gone" in str(error)


def test_rank_0_is_named_by_the_others_when_it_is_silent(ranks: Callable[..., list[Watchdog]]) -> None:
    watches = ranks(timeout_seconds=3.0)
    kill(watches[0])
    for error in ends(watches[1:]):
        assert isinstance(error, PeerLost)
        assert "rank 0 on h0" in str(error)


def test_a_rank_without_a_boundary_in_reach_stops_all(ranks: Callable[..., list[Watchdog]]) -> None:
    for error in ends(ranks(rank_1=NodeContext(signal_number=signal.SIGUSR1))):
        assert isinstance(error, Interrupted)
        assert error.signal_number == signal.SIGUSR1


def test_a_failure_outweighs_the_signals_that_a_launcher_sends_to_the_rest(
    ranks: Callable[..., list[Watchdog]],
) -> None:
    watches = ranks(rank_0=NodeContext(signal_number=15), rank_2=NodeContext(signal_number=15))
    kill(watches[1])
    for error in ends([watches[0], watches[2]]):
        assert "rank 1 on h1 is gone" in str(error)


def test_a_main_thread_that_hangs_is_accused_by_its_own_rank(ranks: Callable[..., list[Watchdog]]) -> None:
    said: list[str] = []
    watches = ranks(timeout_seconds=3.0, rank_1=NodeContext(hangs=said))
    watches[1].check()  # the last sign of its main thread
    for error in ends([watches[0], watches[2]]):
        assert str(error) == "rank 1 on h1: made no progress for 3 s (cluster.timeout_seconds)"
    runs.wait_until(lambda: bool(said))
    assert said[0] == "made no progress for 3 s (cluster.timeout_seconds)"


def test_who_waits_does_not_hang(ranks: Callable[..., list[Watchdog]]) -> None:
    """However long ago its last progress was: its background thread looks again and again, and is content."""
    said: list[str] = []
    rank = ranks(rank_1=NodeContext(hangs=said))[1]

    def looked() -> int:
        return int(rank.main_store.get("beat/1"))

    with rank.waiting():
        rank.progress = time.monotonic() - 1000.0
        before = looked()
        runs.wait_until(lambda: looked() > before + 3)
    assert rank.main_store.get("left/1") == b""
    assert said == []


def test_an_answer_that_does_not_come_is_given_up() -> None:
    never = threading.Event()
    assert isinstance(run_bounded(lambda: never.wait(30), 0.2), TimeoutError)
    assert run_bounded(lambda: 7, 20) == 7


def join_all(*told: tuple[World, dict[str, Any]]) -> list[Any]:
    store = HashStore()

    def one(world: World, mine: dict[str, Any]) -> Any:
        try:
            return join_world(store, world, mine, 1.0, lambda: None)
        except (UsageError, RunError) as error:
            return error

    with ThreadPoolExecutor(len(told)) as pool:
        return [future.result() for future in [pool.submit(one, *each) for each in told]]


def test_ranks_that_meet_know_all_names() -> None:
    names = join_all(*((replace(WORLD, node_rank=rank), {"x": 1}) for rank in range(3)))
    assert names[0] == names[1] == names[2]
    assert [name.split(" on ")[0] for name in names[0]] == ["rank 0", "rank 1", "rank 2"]


def test_two_ranks_alike_are_refused_with_both_processes() -> None:
    two = replace(WORLD, num_nodes=2)
    refusals = join_all((two, {}), (replace(two, node_rank=1), {}), (replace(two, node_rank=1), {}))
    refused = [each for each in refusals if isinstance(each, UsageError)]
    assert refused
    assert str(refused[0]).startswith("two processes are rank 1: one on ")
    assert str(refused[0]).count("(process ") == 2


def test_settings_that_differ_are_refused_by_all_with_both_values() -> None:
    two = replace(WORLD, num_nodes=2)
    refusals = join_all((two, {"env.num_envs": 8}), (replace(two, node_rank=1), {"env.num_envs": 16}))
    for each in refusals:
        assert isinstance(each, UsageError)
        assert "env.num_envs = 16 on rank 1" in str(each)
        assert "8 on rank 0" in str(each)


@pytest.mark.parametrize(("kind", "error"), [("run", PeerLost), ("usage", UsageError)])
def test_ranks_that_meet_hear_why_one_cannot_come(kind: str, error: type[Exception]) -> None:
    store = HashStore()
    post_refusal(store, kind, "actor 5 on h2: the world ended")
    with pytest.raises(error, match="actor 5 on h2: the world ended"):
        join_world(store, WORLD, {}, 1.0, lambda: None)


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcb.cluster.rendezvous.START_SECONDS", 0.5)
    (error,) = join_all((WORLD, {}))
    assert isinstance(error, RunError)
    assert str(error) == "ranks 1, 2 of 3 did not come within 1 s"


# --- A large world ---


@pytest.fixture
def one_of_4000(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Watchdog]]:
    """A rank among 4,000 with the true times: 4.5 s between two signs of life."""
    monkeypatch.setattr(watchdog, "INTERVAL_SECONDS", 0.5)
    monkeypatch.setattr(watchdog, "SILENT_SECONDS", 3.0)
    monkeypatch.setattr(watchdog, "DECIDE_SECONDS", 5.0)
    made: list[Watchdog] = []

    def make(rank: int) -> Watchdog:
        store, names = HashStore(), [f"rank {each} on h{each}" for each in range(4000)]
        for each in range(4000):
            store.set(f"left/{each}", "")
        made.append(
            Watchdog(
                lambda: store, replace(WORLD, num_nodes=4000, node_rank=rank), names, 30.0, WorkerContext()
            )
        )
        return made[0]

    yield make
    for watch in made:
        watch._closed.set()


def test_in_a_large_world_two_intervals_without_a_sign_of_life_are_no_silence(
    one_of_4000: Callable[[int], Watchdog],
) -> None:
    watch, now = one_of_4000(0), time.monotonic()
    ages = dict.fromkeys(range(4000), 9.0)  # two intervals
    watch._seen = {rank: (b"1", now - age) for rank, age in (ages | {1717: 12.0}).items()}
    watch._post(watch.main_store, "lost", "rank 0 on h0 lost the others: connection reset")
    reason = watch._decide(late=True)
    assert reason == {
        "kind": "lost",
        "text": "rank 1717 on h1717 is gone: killed, or cut off from the network",
    }
    assert watch.silent_seconds < watch.decide_seconds  # so silent ranks are known before the decision


def test_in_a_large_world_a_rank_between_two_looks_at_the_store_is_not_cut_off(
    one_of_4000: Callable[[int], Watchdog], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = one_of_4000(5)
    bounds: list[float] = []

    def run_now(function: Callable[[], Any], seconds: float) -> Any:
        bounds.append(seconds)
        return function()

    monkeypatch.setattr(watchdog, "run_bounded", run_now)
    watch.main_store.set("reason", '{"kind": "lost", "text": "rank 3 on h3 is gone", "signal": 0}')
    watch.last_contact = time.monotonic() - 9.0
    assert str(watch.agree(PeerLost("connection reset"))) == "rank 3 on h3 is gone"
    assert bounds == [2 * watch.decide_seconds]
