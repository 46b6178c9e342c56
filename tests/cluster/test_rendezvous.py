"""What is settled before ranks meet: what may differ, which files they need, what one is refused with."""

from __future__ import annotations

import argparse
import contextlib
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psutil
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlcb.cli import check_cluster, train_distributed
from rlcb.cluster import network, rendezvous
from rlcb.cluster.actor_split import read_decision
from rlcb.cluster.network import OTHER_FILES, raise_file_limit, too_few_files
from rlcb.cluster.rendezvous import MeetingPoint, join_world, refuse_peers, shared_settings
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.errors import UsageError
from rlcb.parallel.world import World
from tests import cluster_runs, runs
from tests.cluster.test_watchdog import join_all

pytestmark = pytest.mark.timeout(180)


def ppo(**logging: Any) -> Config:
    data = {"algorithm": "ppo", "mode": "distributed", "env": {"id": "CartPole-v1", "num_envs": 8}}
    data |= {"cluster": {"num_nodes": 2, "num_workers": 2}, "training": {"batch_size": 64}}
    return build_config({**data, "logging": logging}, "test")


def impala(**split: int) -> Config:
    training = {"n_epochs": 1, "batch_size": None, "normalize_advantages": False}
    data = {"algorithm": "impala", "mode": "distributed", "env": {"id": "CartPole-v1", "num_envs": 8}}
    return build_config({**data, "training": training, "impala": split, "cluster": {"num_nodes": 2}}, "test")


# --- What may differ ---


@pytest.mark.parametrize(
    ("key", "one", "other"), [("snapshot_seconds", 1.0, 30.0), ("checkpoint_interval", 100, 7)]
)
def test_when_states_are_taken_has_to_be_the_same_on_all_ranks(key: str, one: float, other: float) -> None:
    told = [shared_settings(ppo(**{key: value}), False) for value in (one, other)]
    world = World("hand", 2, 0, 1, 0, "x", 1)
    for each in join_all((world, told[0]), (replace(world, node_rank=1), told[1])):
        assert isinstance(each, UsageError)
        assert f"logging.{key} = {other} on rank 1" in str(each)
        assert f"{one} on rank 0" in str(each)


def test_where_and_how_rank_0_writes_may_differ() -> None:
    settings = {"checkpoint_dir": "/a", "log_dir": "/b", "tensorboard": False, "log_interval": 5}
    other = ppo(**settings, memory_interval_seconds=9.0, keep_checkpoints=1)
    assert shared_settings(ppo(), True) == shared_settings(other, True)


# --- Open files ---


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_ranks_may_open_as_many_files_as_they_have_connections(limits: tuple[int, int]) -> None:
    soft, hard = OTHER_FILES + 100, limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    first = World("hand", 50, 0, 1, 0, "x", 1)  # has three connections of each rank to its store, and gloo's
    other = replace(first, node_rank=1)
    assert too_few_files(other) is None
    raise_file_limit(other)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    assert too_few_files(first) is not None
    raise_file_limit(first)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert too_few_files(first) is None
    assert too_few_files(replace(first, hosted=True)) is None


def test_more_ranks_than_the_system_allows_files_for_are_refused_by_all_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "OTHER_FILES", 7)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (12, 12))
    world = World("hand", 2, 0, 1, 0, "x", 1)  # rank 0 needs 15, rank 1 only 9
    for each in join_all((world, {}), (replace(world, node_rank=1), {})):
        assert isinstance(each, UsageError)
        assert "needs 15 open files for 2 ranks, but may have 12" in str(each)


# --- What rank 0 does not come for ---


def free_world(**changes: Any) -> World:
    """One node with two ranks, which were started each on its own."""
    return replace(World("slurm", 1, 0, 2, 0, "127.0.0.1", cluster_runs.free_port()), **changes)


def come(world: World) -> Any:
    point = MeetingPoint(world, 5.0)
    point.agree_on_start("ranks", world.rank, world.size, lambda: None)
    return join_world(point.connect(), world, {}, 5.0, lambda: None)


def listen(world: World) -> Any:
    return read_decision(MeetingPoint(world, 5.0).connect(), world, 20.0)


@pytest.mark.parametrize("wait", [come, listen])
def test_others_hear_at_once_why_rank_0_does_not_come(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[World], Any]
) -> None:
    monkeypatch.setattr(rendezvous, "REFUSAL_SECONDS", 50.0)  # longer than is waited here
    world = free_world()
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(wait, replace(world, local_rank=1))
        pool.submit(refuse_peers, world, "ranks", 5.0, "the folder is taken").result(30)
        with pytest.raises(UsageError, match=r"^the folder is taken$"):
            other.result(30)


def test_others_hear_it_at_a_store_that_the_launcher_keeps() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    world = free_world(launcher="torchrun", master_port=server.port, hosted=True)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(come, replace(world, local_rank=1))
        pool.submit(refuse_peers, world, "ranks", 5.0, "the folder is taken").result(30)
        with pytest.raises(UsageError, match=r"^the folder is taken$"):
            other.result(30)


def test_who_does_not_come_to_hear_it_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "REFUSAL_SECONDS", 0.3)
    refuse_peers(free_world(), "ranks", 5.0, "the folder is taken")


@pytest.mark.parametrize(
    ("config", "world", "told"),
    [
        (ppo(), World("hand", 2, 0, 2, None, "x", 1), ("ranks", 4)),
        (ppo(), World("torchrun", 2, 0, 2, 0, "x", 1), ("ranks", 4)),
        (impala(num_actors=2, num_learners=3), World("hand", 2, 0, 1, None, "x", 1), ("ranks", 6)),
        (impala(num_actors=2), World("hand", 2, 0, 1, None, "x", 1), ("nodes", 2)),
        (ppo(), World("hand", 1, 0, 2, None, "x", None), None),  # which has started none yet
    ],
)
def test_those_are_told_that_wait(
    monkeypatch: pytest.MonkeyPatch, config: Config, world: World, told: tuple[str, int] | None
) -> None:
    calls: list[tuple[str, int]] = []
    monkeypatch.setattr(
        rendezvous, "refuse_peers", lambda world, purpose, seconds, text: calls.append((purpose, world.size))
    )
    train_distributed.tell_peers(config, world, "no")
    assert calls == ([] if told is None else [told])


# --- The check of a cluster ---


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--master-port", "70000"), ("master_port = 70000", "65535")),
        (("--timeout-seconds", "0"), ("timeout_seconds = 0", "greater than 0")),
        (("--megabytes", "0"), ("--megabytes 0", "at least 0.001")),
        (("--megabytes", "-4"), ("--megabytes -4", "at least 0.001")),
        (("--megabytes", "nan"), ("--megabytes nan", "at least 0.001")),
        (("--megabytes", "inf"), ("--megabytes inf", "at least 0.001")),
    ],
)
def test_the_check_refuses_wrong_values_in_one_line(flags: tuple[str, str], words: tuple[str, str]) -> None:
    arguments: argparse.Namespace = check_cluster.make_parser().parse_args(flags)
    with pytest.raises(UsageError) as refused:
        check_cluster.run(arguments)
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert "\n" not in str(refused.value)


# --- A node whose first process is killed ---

WAITS_FOR_NODE_1 = """
import sys
from rlcb.parallel.world import World
from rlcb.cluster.actor_split import settle_split
from rlcb.config.yaml_file import build_config

ours = build_config({
    "algorithm": "impala", "mode": "distributed", "env": {"id": "CartPole-v1", "num_envs": 2},
    "training": {"n_epochs": 1, "batch_size": None, "normalize_advantages": False},
    "impala": {"num_actors": 1, "num_learners": 1}, "cluster": {"num_nodes": 2},
}, "test")
settle_split(ours, ours, World("hand", 2, 0, 1, None, sys.argv[1], int(sys.argv[2])))
"""


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
        return False


def test_the_process_that_tells_the_split_ends_with_the_one_that_started_it() -> None:
    address, port = cluster_runs.own_address(), cluster_runs.free_port()
    process = cluster_runs.start([sys.executable, "-c", WAITS_FOR_NODE_1, address, str(port)])
    children: list[psutil.Process] = []
    try:
        runs.wait_until(lambda: is_taken(port))
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        assert psutil.wait_procs(children, timeout=30)[1] == []
        assert not is_taken(port)
    finally:
        process.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.communicate(timeout=10)
