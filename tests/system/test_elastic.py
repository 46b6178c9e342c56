"""Elastic IMPALA on hosts whose link is cut, under torchrun with agents that come and go, and on SLURM."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcb.parallel.remote_tally import SETTLE_SECONDS
from tests import cluster_runs, runs
from tests.cluster.test_elastic import TINY, Elastic, remote_actors
from tests.cluster_runs import IMPALA, fault, free_port, two_hosts
from tests.slurm_cluster import Slurm, slurm_cluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster") as cluster:
        yield cluster


def wait_until_told(folder: Path, number: int) -> None:
    """Wait until so many actors of other nodes have been there for longer than it takes to be told."""
    runs.wait_until(lambda: remote_actors(folder) == number)
    time.sleep(SETTLE_SECONDS + 1)


def test_nodes_by_hand_join_leave_and_join_again_and_the_run_completes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = (*fault(delay=0.002), "--output-dir", folder)
    with Elastic(cluster_runs.own_address()) as nodes:
        first = nodes.start_node(0, *flags, "--total-timesteps", 32 * 800)
        second = nodes.start_node(1, *flags)
        wait_until_told(folder, 1)
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 143
        wait_until_told(folder, 0)
        third = nodes.start_node(2, *flags)
        wait_until_told(folder, 1)
        output, errors = first.communicate(timeout=90)
        assert first.returncode == 0, errors
        other_output, other_errors = third.communicate(timeout=30)
        assert third.returncode == 0, other_errors
    assert "Node 2 (" in other_output
    assert "is complete" in other_output
    assert output.count("joined: 1 actor, 2 in all") == 2
    assert output.count("left: 1 actor in all") == 1
    record = runs.record(folder)
    assert (record["status"], record["total_updates"]) == ("completed", 800)
    assert record["config"]["cluster"]["num_nodes"] is None
    assert [each["actors"] for each in record["impala"]["remote"]["events"]] == [1, 0, 1]
    assert record["impala"]["remote"]["other_hosts"] == 1
    assert record["efficiency"] is None
    cluster_runs.assert_nothing_left(folder)


def test_a_pulled_cable_takes_a_node_away_and_updates_go_on_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = (*fault(delay=0.002), "--output-dir", folder)
    with two_hosts() as (names, address), Elastic(address, names) as nodes:
        first, second = nodes.start_node(0, *flags), nodes.start_node(1, *flags)
        runs.wait_until(lambda: remote_actors(folder) == 1)
        runs.wait_for_rows(folder, len(runs.rows(folder)) + 20)
        cluster_runs.cut(names)
        runs.wait_for_rows(folder, len(runs.rows(folder)) + 100)  # many more than there are slots
        runs.wait_until(lambda: remote_actors(folder) == 0, 60)  # it is silent for too long
        runs.wait_for_rows(folder, len(runs.rows(folder)) + 100)  # for longer than it takes to be told
        cluster_runs.call("ip", "-n", names[1], "link", "set", cluster_runs.LINK_B, "up")
        runs.wait_until(lambda: remote_actors(folder) == 1, 60)
        runs.wait_for_rows(folder, len(runs.rows(folder)) + 100)
        first.send_signal(signal.SIGTERM)
        (code, _, errors), (other_code, output, _) = nodes.wait(60)
    assert (code, other_code) == (143, 1), errors
    assert second.returncode == 1
    assert "Lost the learner at " in output
    for row in runs.rows(folder):
        assert row["impala/policy_lag_max"] <= 2
    record = runs.record(folder)
    assert [each["actors"] for each in record["impala"]["remote"]["events"]] == [1, 0, 1]
    cluster_runs.assert_nothing_left(folder)


def agent(address: str, port: int, first: bool, folder: Path, *flags: object) -> list[str]:
    """The command of a torchrun agent of an elastic run of one or two nodes."""
    place: tuple[object, ...] = ("--nnodes", "1:2", "--nproc-per-node", 1, "--max-restarts", 3)
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:{port}", "--rdzv-id", port)
    options = f"is_host={str(first).lower()},last_call_timeout=3,join_timeout=60"
    place = (*place, *meeting, "--rdzv-conf", options, "--local-addr", address)
    words = (sys.executable, "-m", "torch.distributed.run", *place, *IMPALA.split(), *TINY, *flags)
    return [str(word) for word in (*words, "--output-dir", folder)]


# Without it, an agent that comes later waits for an address that the first one tells only once (torch 2.13).
SHARES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def test_under_torchrun_an_agent_comes_later_and_leaves_and_the_run_goes_on(tmp_path: Path) -> None:
    """torchrun starts all processes anew when one comes; the run resumes from its newest checkpoint."""
    folder, address, port = tmp_path / "run", cluster_runs.own_address(), free_port()
    flags = (*fault(delay=0.002), "--set", "logging.checkpoint_interval=10")
    agents = [cluster_runs.start(agent(address, port, True, folder, *flags), TEST_RANK=0, **SHARES)]
    try:
        runs.wait_for_rows(folder, 20, timeout=90)
        agents.append(cluster_runs.start(agent(address, port, False, folder, *flags), TEST_RANK=1, **SHARES))
        runs.wait_until(lambda: remote_actors(folder) == 1, 120)
        runs.wait_for_rows(folder, len(runs.rows(folder)) + 20)
        agents[1].send_signal(signal.SIGTERM)
        agents[1].communicate(timeout=60)
        runs.wait_until(lambda: remote_actors(folder) == 0, 120)  # also if the learner was on that node
        runs.wait_for_rows(folder, len(runs.rows(folder)) + 50)
        agents[0].send_signal(signal.SIGTERM)
        agents[0].communicate(timeout=60)
    finally:
        for process in agents:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=40)
    record, rows = runs.record(folder), runs.rows(folder)
    assert record["status"] == "interrupted"
    assert [row["update"] for row in rows] == list(range(1, record["total_updates"] + 1))
    assert {row["impala/remote_actors"] for row in rows} == {0.0, 1.0}
    assert record["impala"]["remote"]["other_hosts"] == 1
    cluster_runs.assert_nothing_left(folder)


def test_on_slurm_the_second_node_acts_for_the_first(slurm: Slurm, tmp_path: Path) -> None:
    folder, updates = tmp_path / "run", 1500
    given = {"PROJECT": runs.PROJECT, "PYTHON": sys.executable, "OUTPUT": folder}
    place = ("--parsable", "--cpus-per-task=1", f"--output={slurm.folder}/job-%j.out")
    flags = (*TINY, *fault(delay=0.002), "--total-timesteps", 32 * updates)
    script = (runs.PROJECT / "cluster" / "slurm.sbatch", *IMPALA.split())
    job = slurm.call("sbatch", *place, *script, *flags, **given).strip()
    slurm.wait_for_state(job, ("COMPLETED", 0), timeout=150)
    record = runs.record(folder)
    assert (record["status"], record["total_updates"]) == ("completed", updates)
    assert [worker["name"] for worker in record["workers"]] == ["learner 0", "actor 0"]
    unrolls = record["impala"]["remote"]["unrolls"]
    assert unrolls.keys() == {"rlcb-n1", "rlcb-n2"}
    assert sum(unrolls.values()) == 2 * updates
    log = (slurm.folder / f"job-{job}.out").read_text()
    assert "Node 1 (rlcb-n2) acts for node 0 at rlcb-n1:" in log
    cluster_runs.assert_nothing_left(folder)
