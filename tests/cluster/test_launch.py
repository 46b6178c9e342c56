"""A process finds its place in a distributed run, and is refused when it is told two things."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from rlcb.cluster import launch
from rlcb.cluster.launch import discover, settle
from rlcb.cluster.network import VARIABLE, require_own_address, use_interface
from rlcb.config.settings import ClusterConfig
from rlcb.errors import UsageError

ELASTIC = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "192.0.2.7",
    "MASTER_PORT": "4000",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
UNEQUAL = {**ELASTIC, "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}  # rank 3 of 4, on a node of 3
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_NUM_NODES": "2",
    "MASTER_ADDR": "192.0.2.7",
    "SLURM_RESTART_COUNT": "1",
}


def find(environ: dict[str, str], node_rank: int | None = None, **settings: Any) -> launch.World:
    return discover(ClusterConfig(**settings), node_rank, environ)


def test_under_torchrun_each_process_is_one_rank() -> None:
    world = find(ELASTIC)
    assert (world.num_nodes, world.node_rank, world.num_workers, world.local_rank) == (2, 1, 2, 1)
    assert (world.rank, world.size, world.restarts, world.hosted) == (3, 4, 2, True)
    assert (world.master_addr, world.master_port) == ("192.0.2.7", 4000)


def test_one_slurm_task_for_each_node_starts_the_workers() -> None:
    world = find(STEP, num_workers=3)
    assert (world.num_nodes, world.node_rank, world.num_workers, world.local_rank) == (2, 1, 3, None)
    assert (world.rank, world.size, world.restarts) == (3, 6, 1)
    assert world.master_port in launch.SLURM_PORTS


def test_one_slurm_task_for_each_worker_is_a_rank_whatever_the_distribution_of_tasks() -> None:
    cyclic = {**STEP, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
    world = find(cyclic)
    assert (world.num_workers, world.local_rank, world.rank) == (2, 1, 3)


def test_torchruns_agents_may_start_different_numbers_of_processes() -> None:
    world = find(UNEQUAL)
    assert (world.sizes, world.rank, world.first_rank, world.local_rank) == ((1, 3), 3, 1, 2)
    assert world.complete
    first = find({**UNEQUAL, "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"})
    assert (first.sizes, first.rank, first.size, first.complete) == ((1, 3), 0, 4, True)


def test_of_more_than_two_nodes_torchrun_tells_a_rank_only_its_own_and_the_sum() -> None:
    world = find({**UNEQUAL, "GROUP_WORLD_SIZE": "3", "WORLD_SIZE": "6"})
    assert (world.rank, world.size, world.num_workers, world.local_rank) == (3, 6, 3, 2)
    assert not world.complete
    assert not find({}, 1, num_nodes=2, num_workers=2, master_addr="192.0.2.7").complete
    assert not find(STEP).complete  # each task starts as many workers as its node has cores
    assert find({}).complete


@pytest.mark.parametrize(
    ("text", "tasks", "sizes"), [("1,3", 4, (1, 3)), ("4,2(x2)", 8, (4, 2, 2)), ("2(x2)", 4, (2, 2))]
)
def test_slurm_tells_the_tasks_of_every_node(text: str, tasks: int, sizes: tuple[int, ...]) -> None:
    counts = {"SLURM_STEP_NUM_NODES": len(sizes), "SLURM_STEP_NUM_TASKS": tasks, "SLURM_JOB_NUM_NODES": 2}
    step = {**STEP, **{key: str(value) for key, value in counts.items()}, "SLURM_LOCALID": "1"}
    world = find({**step, "SLURM_STEP_TASKS_PER_NODE": text})
    assert (world.sizes, world.complete, world.num_workers) == (sizes, True, sizes[1])
    assert (world.rank, world.size) == (sizes[0] + 1, tasks)


def test_impala_is_refused_where_one_node_has_several_processes() -> None:
    alone = {**UNEQUAL, "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
    for environ in (alone, UNEQUAL):
        with pytest.raises(UsageError, match="starts 4 processes on 2 nodes, but IMPALA takes one on each"):
            launch.as_starter(find(environ))


def test_by_hand_a_node_starts_its_workers() -> None:
    world = find({}, 1, num_nodes=3, num_workers=2, master_addr="192.0.2.7")
    assert (world.rank, world.size, world.local_rank, world.master_port) == (2, 6, None, 29500)
    alone = find({}, num_workers=2)
    assert (alone.size, alone.master_port) == (2, None)


def test_nodes_of_an_elastic_run_need_no_number_of_nodes() -> None:
    first = find({}, elastic=True)
    assert (first.num_nodes, first.node_rank, first.master_port) == (1, 0, 29500)
    other = find({}, 5, elastic=True, master_addr="192.0.2.7")
    assert (other.node_rank, other.master_addr, other.master_port) == (5, "192.0.2.7", 29500)
    with pytest.raises(UsageError, match="needs --master-addr"):
        find({}, 1, elastic=True)


def test_flags_win_over_slurm_in_a_shell_inside_of_a_job() -> None:
    shell = {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}
    assert find(shell, 1, num_nodes=2).launcher == "hand"


@pytest.mark.parametrize(
    ("environ", "node_rank", "settings", "values"),
    [
        (STEP, None, {"num_nodes": 3}, ("cluster.num_nodes = 3", "SLURM_STEP_NUM_NODES = 2")),
        (STEP, 0, {}, ("--node-rank = 0", "SLURM_NODEID = 1")),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "3"}, None, {}, ("= 3", "SLURM_STEP_NUM_NODES = 2")),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "4"}, None, {"num_workers": 3}, ("= 3", "TASKS_PER_NODE = 2")),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "1,2"}, None, {}, ("'1,2'", "SLURM_STEP_NUM_TASKS = 2")),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "x"}, None, {}, ("'x'", "SLURM_STEP_NUM_NODES = 2")),
        (UNEQUAL, None, {"node_workers": (2, 2)}, ("node_workers[1] = 2", "LOCAL_WORLD_SIZE = 3")),
        (UNEQUAL, None, {"node_workers": (1, 3, 1)}, ("node_workers = 3", "GROUP_WORLD_SIZE = 2")),
        ({**UNEQUAL, "LOCAL_RANK": "3"}, None, {}, ("RANK = 3", "LOCAL_RANK = 3 of LOCAL_WORLD_SIZE = 3")),
        ({}, 0, {"node_workers": (2,), "num_workers": 1}, ("num_workers = 1", "node_workers[0] = 2")),
        (STEP, None, {"master_addr": "192.0.2.9"}, ("192.0.2.9", "192.0.2.7")),
        ({"SLURM_JOB_NUM_NODES": "2"}, None, {}, ("2 nodes", "srun")),
        (ELASTIC, None, {"num_nodes": 4}, ("cluster.num_nodes = 4", "GROUP_WORLD_SIZE = 2")),
        (ELASTIC, None, {"num_workers": 8}, ("cluster.num_workers = 8", "LOCAL_WORLD_SIZE = 2")),
        (ELASTIC, 0, {}, ("--node-rank = 0", "GROUP_RANK = 1")),
        (ELASTIC, None, {"master_port": 4001}, ("4001", "4000")),
        ({**ELASTIC, "WORLD_SIZE": "5"}, None, {}, ("WORLD_SIZE = 5", "LOCAL_WORLD_SIZE = 2")),
        ({**ELASTIC, "LOCAL_RANK": "0"}, None, {}, ("RANK = 3", "LOCAL_RANK = 0")),
        ({**ELASTIC, "RANK": "x"}, None, {}, ("RANK = 'x'", "whole number")),
        ({}, None, {"num_nodes": 2}, ("num_nodes = 2", "--node-rank")),
        ({}, 2, {"num_nodes": 2}, ("--node-rank 2", "num_nodes = 2")),
        ({}, 0, {"num_nodes": 2}, ("num_nodes = 2", "--master-addr")),
        ({}, 1, {"num_nodes": 2, "master_addr": "127.0.0.1"}, ("127.0.0.1", "num_nodes = 2")),
        ({}, 1, {"num_nodes": 2, "master_addr": "localhost"}, ("localhost", "num_nodes = 2")),
        ({**ELASTIC, "MASTER_ADDR": "127.0.0.1"}, None, {}, ("127.0.0.1", "num_nodes = 2")),
    ],
)
def test_contradictions_are_refused_with_both_values(
    environ: dict[str, str], node_rank: int | None, settings: dict[str, Any], values: tuple[str, str]
) -> None:
    with pytest.raises(UsageError) as refused:
        find(environ, node_rank, **settings)
    assert all(value in str(refused.value) for value in values), str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_told_once_or_alike_is_taken() -> None:
    assert settle(("a", None), ("b", 3), ("c", 3)) == 3
    assert settle(("a", None), default=5) == 5


def test_an_interface_that_is_not_there_or_contradicts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = find({}, num_workers=1)
    monkeypatch.setenv(VARIABLE, "lo")
    with pytest.raises(UsageError, match="nosuch0 contradicts GLOO_SOCKET_IFNAME = lo"):
        use_interface(world, "nosuch0")
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(UsageError, match=r"nosuch0: .* has no such interface with an address"):
        use_interface(world, "nosuch0")
    assert use_interface(world, None).startswith("lo")


def test_node_0_is_refused_on_a_host_that_is_not_the_master() -> None:
    world = find({}, 0, num_nodes=2, master_addr="192.0.2.77")
    with pytest.raises(UsageError, match=r"192\.0\.2\.77.*" + socket.gethostname()):
        require_own_address(world)
