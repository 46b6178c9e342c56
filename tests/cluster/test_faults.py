"""What happens to one rank ends all, in the same words, with the last checkpoint whole; then it goes on."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests import cluster_runs, runs
from tests.cluster_runs import PPO, TINY, Nodes, fault, torchrun

pytestmark = pytest.mark.timeout(300)

TIMEOUT = 8
EVERY_STATE = ("--set", "logging.snapshot_seconds=0", "--set", f"cluster.timeout_seconds={TIMEOUT}")


def assert_whole(folder: Path) -> None:
    """The newest checkpoint can be read, and is where the metrics end."""
    newest = max(folder.glob("checkpoints/*_step_*.pt"), key=lambda path: int(path.stem.split("_")[-1]))
    counters = runs.checkpoint(folder, newest.stem.removeprefix("ppo_distributed_"))["counters"]
    assert counters["timesteps"] == runs.rows(folder)[-1]["timesteps"] > 0


@pytest.mark.parametrize(
    ("kind", "reduction", "rank", "here", "there"),
    [
        (
            "raise",
            "ring",
            1,
            "environment 2 raised at step",
            "rank 1 on {host}: environment 2 raised at step",
        ),
        ("kill", "direct", 0, "rank 0 on {host} was killed by SIGKILL", "rank 0 on {host} is gone"),
        pytest.param(
            "hang",
            "direct",
            1,
            f"made no progress for {TIMEOUT} s",
            f"rank 1 on {{host}}: made no progress for {TIMEOUT} s",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_rank_that_fails_on_one_node_ends_the_other_with_its_name(
    tmp_path: Path, kind: str, reduction: str, rank: int, here: str, there: str
) -> None:
    folder, host = tmp_path / "run", socket.gethostname()
    began = tmp_path / "began"
    flags = (*TINY, *EVERY_STATE, *fault(fault=kind, rank=rank, at=120, once=began), "--num-workers", 1)
    flags += ("--set", f"cluster.reduction={reduction}")
    with Nodes(cluster_runs.own_address()) as nodes:
        nodes.start(PPO, *flags, "--set", "logging.checkpoint_interval=5", "--output-dir", folder)
        endings = nodes.wait(90)
    assert [code for code, *_ in endings] == [1, 1]
    assert here.format(host=host) in endings[rank][2].splitlines()[-1]
    assert there.format(host=host) in endings[1 - rank][2].splitlines()[-1]
    assert began.exists()
    record = runs.record(folder)
    assert record["status"] == "failed"
    assert (record["start_time"] is None) == (record["workers"] == []) == (rank == 0)  # what it knew is lost
    assert runs.rows(folder)[-1]["update"] == 14  # of 8 steps each
    if rank == 0:  # which could not save what it knew
        assert runs.checkpoint(folder, "step_320")["counters"] == {"updates": 10, "timesteps": 320}
    else:
        assert_whole(folder)
    cluster_runs.assert_nothing_left(folder)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cluster.reduction=hierarchical", "gradient sums within nodes, then between them"),
        ("cluster.average_every=1", "gradient sums within nodes; averages of the nodes every update"),
    ],
)
def test_a_rank_that_sums_through_shared_memory_notices_at_once_that_another_one_was_killed(
    tmp_path: Path, setting: str, words: str
) -> None:
    folder, port = tmp_path / "run", cluster_runs.free_port()
    flags = (*TINY, *fault(fault="kill", rank=1, at=120), "--output-dir", folder, "--set", setting)
    flags += ("--set", "logging.snapshot_seconds=0", "--set", "cluster.timeout_seconds=1000")
    place = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with Nodes("127.0.0.1", ()) as ranks:
        for rank in range(2):
            command = runs.command(PPO, *flags)
            ranks.processes.append(cluster_runs.start(command, RANK=rank, LOCAL_RANK=rank, **place))
        (code, output, errors), (killed, _, _) = ranks.wait(60)
    assert (code, killed) == (1, -9), errors
    assert f"rank 1 on {socket.gethostname()} is gone" in errors.splitlines()[-1]
    assert words in " ".join(output.split())
    assert runs.rows(folder)[-1]["update"] == 14
    assert_whole(folder)


def test_torchrun_starts_a_killed_run_anew_and_it_goes_on(tmp_path: Path) -> None:
    folder, once = tmp_path / "run", tmp_path / "once"
    flags = (*TINY, *EVERY_STATE, *fault(fault="kill", at=200, once=once), "--total-timesteps", 32 * 60)
    process = cluster_runs.start(torchrun(PPO, *flags, "--output-dir", folder, restarts=2))
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert f"rank 1 on {socket.gethostname()} is gone" in errors
    assert output.count("TRAINING SUMMARY") == 2
    record = runs.record(folder)
    assert (record["status"], record["total_timesteps"]) == ("completed", 32 * 60)
    assert [row["update"] for row in runs.rows(folder)] == list(range(1, 61))
    assert record["duration_hours"] * 3600 >= runs.rows(folder)[-1]["time/elapsed_seconds"] - 1e-3


def test_a_signal_to_one_node_stops_all_at_one_boundary_and_the_same_command_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = (*TINY, *fault(delay=0.002), "--num-workers", 1, "--resume", "auto", "--output-dir", folder)
    with Nodes(cluster_runs.own_address()) as nodes:
        nodes.start(PPO, *flags)
        runs.wait_for_rows(folder, 5)
        nodes.processes[1].send_signal(signal.SIGUSR1)
        (code, _, errors), (other_code, _, other_errors) = nodes.wait(60)
    assert (code, other_code) == (128 + signal.SIGUSR1,) * 2, errors + other_errors
    first = runs.record(folder)
    assert first["status"] == "interrupted"
    assert_whole(folder)
    cluster_runs.assert_nothing_left(folder)

    before = first["duration_hours"] * 3600
    limit = before + 1.0
    with Nodes(cluster_runs.own_address()) as nodes:
        nodes.start(PPO, *flags, "--duration", limit / 3600)
        (code, _, errors), (other_code, *_) = nodes.wait(60)
    assert (code, other_code) == (0, 0), errors
    second, rows = runs.record(folder), runs.rows(folder)
    assert second["status"] == "completed"
    assert second["total_timesteps"] == 32 * len(rows) > first["total_timesteps"]
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1))
    elapsed = [row["time/elapsed_seconds"] for row in rows]
    assert elapsed == sorted(elapsed)
    # The time before counts: all of it together ended at the boundary nearest to the limit.
    assert elapsed[-1] + (elapsed[-1] - elapsed[-2]) / 2 > limit - 0.5
    assert elapsed[-2] < limit


def test_a_port_that_is_taken_is_refused_by_name(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        result = runs.call(
            PPO, *TINY, "--num-nodes", 2, "--node-rank", 0, "--num-workers", 2, "--master-addr",
            cluster_runs.own_address(), "--master-port", port, "--output-dir", tmp_path / "run",
        )  # fmt: skip
    assert result.returncode == 2
    assert f"cluster.master_port = {port} cannot be used on {socket.gethostname()}" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_nodes_with_different_settings_are_refused_by_both(tmp_path: Path) -> None:
    address = cluster_runs.own_address()
    with Nodes(address) as nodes:
        common = (PPO, *TINY, "--output-dir", tmp_path / "run", *nodes.place, "--num-workers", 1)
        for node, gamma in enumerate((0.5, 0.75)):
            words = runs.command(*common, "--node-rank", node, "--gamma", gamma)
            nodes.processes.append(cluster_runs.start(words))
        ended = nodes.wait(60)
    for code, _, errors in ended:
        assert code == 2, errors
        assert "training.gamma = 0.75 on rank" in errors.splitlines()[-1]
        assert "0.5 on rank 0" in errors.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_taken_is_refused_by_both_nodes_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with Nodes(cluster_runs.own_address()) as nodes:
        nodes.start(PPO, *TINY, "--num-workers", 1, "--output-dir", tmp_path)
        ended = nodes.wait(60)
    for code, _, errors in ended:
        assert code == 2, errors
        assert f"{tmp_path} already holds a run" in errors.splitlines()[-1]
    cluster_runs.assert_nothing_left(tmp_path)


def test_wrong_values_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    for flags, words in (
        (("--num-nodes", 2, "--node-rank", 1, "--master-addr", "127.0.0.1"), ("127.0.0.1", "num_nodes = 2")),
        (("--num-workers", 3, "--num-envs", 4), ("env.num_envs = 4", "= 3")),
        (("--num-actors", 3), ("--num-actors 3", "IMPALA")),
    ):
        result = runs.run(PPO, *TINY, *flags, "--output-dir", tmp_path / "run", env={**os.environ})
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == 1
        assert all(word in result.stderr for word in words), result.stderr


def test_a_restarted_job_without_a_folder_is_refused(tmp_path: Path) -> None:
    restarted = {**os.environ, "SLURM_RESTART_COUNT": "1"}
    result = runs.run(PPO, *TINY, "--num-workers", 1, env=restarted)
    assert result.returncode == 2
    assert "started 2 times needs --output-dir" in result.stderr
