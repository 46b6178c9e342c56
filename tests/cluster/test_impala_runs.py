"""IMPALA over two nodes as users start it: what it computes, how it ends when a part fails, and goes on."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from rlcb.cli.evaluate import main as evaluate
from rlcb.cli.train import main
from tests import cluster_runs, rank_env, runs
from tests.cluster_runs import IMPALA, Nodes, agents, fault
from tests.impala_runs import POLE, require_equal_runs

pytestmark = pytest.mark.timeout(300)

HOST = socket.gethostname()
TIMEOUT = 8
# One actor on each node; endless, unless a test gives a budget or a fault.
TINY = (
    *("--env", rank_env.ID, "--num-envs", 4, "--n-steps", 8, "--total-timesteps", 1e7),
    *("--set", "logging.tensorboard=false", "--set", "logging.snapshot_seconds=0"),
)
ONE_ACTOR = ("--num-actors", 1, "--set", "impala.num_learners=1")
PER_UPDATE = 32


def assert_whole(folder: Path) -> None:
    """The newest checkpoint can be read, and is where the metrics end."""
    newest = max(folder.glob("checkpoints/*_step_*.pt"), key=lambda path: int(path.stem.split("_")[-1]))
    counters = runs.checkpoint(folder, newest.stem.removeprefix("impala_distributed_"))["counters"]
    assert counters["timesteps"] == runs.rows(folder)[-1]["timesteps"] > 0


def assert_exact(folder: Path, timesteps: int) -> None:
    """Every update is there once, with as many timesteps as all nodes bring."""
    record, rows = runs.record(folder), runs.rows(folder)
    assert (record["status"], record["total_timesteps"]) == ("completed", timesteps)
    assert [row["update"] for row in rows] == list(range(1, timesteps // PER_UPDATE + 1))
    assert [row["timesteps"] for row in rows] == [row["update"] * PER_UPDATE for row in rows]


def assert_nothing_left(folder: Path, before: set[str]) -> None:
    cluster_runs.assert_nothing_left(folder)
    assert runs.left_in_shared_memory(before) == set()


@pytest.mark.slow
def test_without_lag_two_nodes_log_what_one_process_logs(tmp_path: Path) -> None:
    """Under torchrun, with two learners on each node and gradients that are summed as they come."""
    before, folder, alone = runs.shared_files(), tmp_path / "run", tmp_path / "alone"
    assert main("impala", "sequential", False, [*map(str, POLE), "--output-dir", str(alone)]) == 0
    flags = (
        *("--num-actors", 1, "--set", "impala.num_learners=2", "--set", "impala.max_policy_lag=0"),
        *("--set", "cluster.overlap=true", "--set", "parallel.check_every=1"),
        *("--set", "impala.check_unwritten=true", "--output-dir", folder),
    )
    address = cluster_runs.own_address()
    with Nodes(address) as nodes:
        nodes.start_agents(agents(address, IMPALA, *POLE, *flags))
        (code, output, errors), (other_code, other_output, other_errors) = nodes.wait(100)
    assert (code, other_code) == (0, 0), errors + other_errors
    require_equal_runs(folder, alone)
    record = runs.record(folder)
    assert [worker["name"] for worker in record["workers"]] == [
        *(f"rank {rank} on {HOST}" for rank in range(4)),
        *(f"actor {number} on {HOST}" for number in range(2)),
    ]
    for worker in record["workers"]:
        assert sum(part["share"] for part in worker["time_breakdown"].values()) > 0.9
    assert record["slowest_rank"]["name"] in {worker["name"] for worker in record["workers"][:4]}
    for words in (
        "Nodes:              2",
        "Slowest rank:       rank ",
        "Who waited:",
    ):
        assert words in output
    assert "synchronising with other nodes" in " ".join(output.split())
    assert output.count("TRAINING SUMMARY") == 1
    assert f"Node 1 ({HOST}) starts ranks 2 to 3 of 4 and 1 actor" in other_output
    assert_nothing_left(folder, before)

    checkpoint, result = folder / "checkpoints" / "impala_distributed_final.pt", tmp_path / "result.json"
    given = ("--checkpoint", checkpoint, "--algorithm", "impala", "--num-episodes", 2, "--output", result)
    assert evaluate([*map(str, given), "--num-threads", "1"]) == 0
    evaluated = json.loads(result.read_text())
    assert (evaluated["algorithm"], evaluated["training_mode"]) == ("impala", "distributed")


def test_one_node_without_a_port_is_a_run_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = (*TINY, "--num-actors", 2, "--set", "impala.num_learners=2", "--total-timesteps", 5 * PER_UPDATE)
    result = runs.call(IMPALA, *flags, "--output-dir", folder)
    assert result.returncode == 0, result.stderr
    assert_exact(folder, 5 * PER_UPDATE)
    cluster_runs.assert_nothing_left(folder)


def test_a_killed_learner_ends_both_nodes_and_agents_that_meet_over_c10d_start_them_anew(
    tmp_path: Path,
) -> None:
    """Only the agent whose processes end first counts a restart."""
    before, folder, address = runs.shared_files(), tmp_path / "run", cluster_runs.own_address()
    flags = (*TINY, *ONE_ACTOR, *fault(delay=0.001), "--total-timesteps", 400 * PER_UPDATE)
    flags = (*flags, "--resume", "auto", "--output-dir", folder)
    with Nodes(address) as nodes:
        nodes.start_agents(agents(address, IMPALA, *flags, c10d=True, restarts=2))
        runs.wait_for_rows(folder, 5)
        (node,) = psutil.Process(nodes.processes[1].pid).children()
        learner, _ = workers_of(node)
        learner.kill()
        ended = nodes.wait(100)
    assert [code for code, *_ in ended] == [0, 0], ended
    assert f"failed: rank 1 on {HOST} was killed by SIGKILL" in "".join(errors for _, _, errors in ended)
    assert any("Status:             completed" in output for _, output, _ in ended)
    assert_exact(folder, 400 * PER_UPDATE)
    assert_nothing_left(folder, before)


def workers_of(node: psutil.Process) -> list[psutil.Process]:
    """The learner and the actor of a node, which is nicer."""
    found = runs.worker_origin(node.pid).children()
    found.sort(key=lambda each: each.nice())
    assert [each.nice() > os.nice(0) for each in found] == [False, True]
    return found


def test_the_first_node_measures_an_actor_is_replaced_a_signal_stops_all_and_the_same_command_goes_on(
    tmp_path: Path,
) -> None:
    before, folder, once = runs.shared_files(), tmp_path / "run", tmp_path / "once"
    flags = (*TINY, *fault(fault="kill", at=60, once=once, delay=0.002))
    flags = (*flags, "--set", "cluster.compression=bf16", "--resume", "auto", "--output-dir", folder)
    with Nodes(cluster_runs.own_address()) as nodes:
        nodes.start(IMPALA, *flags)
        runs.wait_until(lambda: restarts(folder) == 1)
        nodes.processes[1].send_signal(signal.SIGUSR1)
        (code, output, errors), (other_code, _, other_errors) = nodes.wait(60)
    assert (code, other_code) == (128 + signal.SIGUSR1,) * 2, errors + other_errors
    assert "Measuring how many actors and learners suit this node" in output
    assert "was killed by SIGKILL; replaced by a new one (1 of 3: impala.max_actor_restarts)" in other_errors
    first = runs.record(folder)
    assert first["status"] == "interrupted"
    assert first["impala"]["actor_restarts"] == 1
    assert_whole(folder)
    assert_nothing_left(folder, before)

    budget = first["total_timesteps"] + 10 * PER_UPDATE
    with Nodes(cluster_runs.own_address()) as nodes:
        nodes.start(IMPALA, *flags, "--total-timesteps", budget)
        (code, output, errors), (other_code, _, other_errors) = nodes.wait(60)
    assert (code, other_code) == (0, 0), errors + other_errors
    assert "Measuring" not in output
    assert_exact(folder, budget)
    second = runs.record(folder)
    for key in ("num_actors", "num_learners"):
        assert second["config"]["impala"][key] == first["config"]["impala"][key] is not None
    assert second["impala"]["actor_restarts"] == 1
    assert_nothing_left(folder, before)


def restarts(folder: Path) -> float:
    if not any(folder.glob("logs/*/metrics.jsonl")):
        return 0.0
    rows = runs.rows(folder)
    return float(rows[-1]["impala/actor_restarts"]) if rows else 0.0


@pytest.mark.slow
def test_an_actor_that_hangs_too_often_ends_all_nodes_with_its_name(tmp_path: Path) -> None:
    before, folder, began = runs.shared_files(), tmp_path / "run", tmp_path / "began"
    flags = (*TINY, *ONE_ACTOR, *fault(fault="hang", at=120, once=began), "--output-dir", folder)
    flags = (*flags, "--set", "impala.max_actor_restarts=0", "--set", f"cluster.timeout_seconds={TIMEOUT}")
    with Nodes(cluster_runs.own_address()) as nodes:
        nodes.start(IMPALA, *flags)
        ended = nodes.wait(90)
    for code, _, errors in ended:
        assert code == 1, errors
        expected = f"actor 1 on {HOST}: made no progress for {TIMEOUT} s (cluster.timeout_seconds)"
        assert expected in errors.splitlines()[-1]
    assert began.exists()
    assert runs.record(folder)["status"] == "failed"
    assert_whole(folder)
    assert_nothing_left(folder, before)
