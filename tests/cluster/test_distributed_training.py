"""Distributed runs compute what one process computes, however ranks are started and split over nodes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcb.cli.train import main
from tests import cluster_runs, runs
from tests.cluster_runs import Nodes, torchrun

pytestmark = pytest.mark.timeout(300)

SMALL = (
    *("--env", "CartPole-v1", "--num-envs", 12, "--n-steps", 7, "--gamma", 0.99, "--learning-rate", 1e-3),
    *("--set", "logging.tensorboard=false", "--total-timesteps", 84 * 5),
)
FLAGS = {"ppo": (*SMALL, "--n-epochs", 2, "--batch-size", 41), "a2c": SMALL}


@pytest.fixture(scope="module", params=["ppo", "a2c"])
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An algorithm and a run of it in one process."""
    folder = tmp_path_factory.mktemp("alone") / request.param
    flags = [*map(str, FLAGS[request.param]), "--num-threads", "1", "--output-dir", str(folder)]
    assert main(request.param, "sequential", False, flags) == 0
    return request.param, folder


def assert_same(folder: Path, alone: Path) -> None:
    """Equal parameters, equal figures, and the same episodes in the same environments."""
    torch.testing.assert_close(runs.parameters(folder), runs.parameters(alone), atol=1e-5, rtol=0)
    ours, theirs = runs.checkpoint(folder), runs.checkpoint(alone)
    torch.testing.assert_close(ours["collector"]["observations"], theirs["collector"]["observations"])
    assert ours["scaler"]["count"] == theirs["scaler"]["count"] == 84 * 5
    assert ours["scaler"]["squared_deviations"] == pytest.approx(theirs["scaler"]["squared_deviations"])
    keys = ("train/policy_loss", "train/explained_variance", "train/grad_norm")
    keys += ("rollout/ep_reward_mean", "rollout/reward_per_step")
    for row, expected in zip(runs.rows(folder), runs.rows(alone), strict=True):
        assert [row[key] for key in keys] == pytest.approx([expected[key] for key in keys], abs=1e-5)
    ours_record, theirs_record = runs.record(folder), runs.record(alone)
    for key in ("total_timesteps", "total_updates", "total_episodes"):
        assert ours_record[key] == theirs_record[key]


def test_two_ranks_under_torchrun(alone: tuple[str, Path], tmp_path: Path) -> None:
    algorithm, folder = alone
    command = torchrun(
        f"train.py --algorithm {algorithm} --mode distributed",
        *FLAGS[algorithm],
        "--output-dir",
        tmp_path / "2",
    )
    process = cluster_runs.start(command)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert_same(tmp_path / "2", folder)
    assert output.count("TRAINING SUMMARY") == 1
    assert "1 x 2" in output


@pytest.mark.parametrize("reduction", ["auto", "direct"])
def test_two_nodes_of_two_workers_that_overlap_the_sum_with_the_backward_pass(
    alone: tuple[str, Path], tmp_path: Path, reduction: str
) -> None:
    algorithm, folder = alone
    target = tmp_path / "4"
    extra = ("--num-workers", 2, "--set", "cluster.overlap=true", "--output-dir", target)
    extra += ("--set", f"cluster.reduction={reduction}")
    with Nodes(cluster_runs.own_address()) as nodes:
        (code, output, errors), (other_code, other_output, other_errors) = nodes.train(
            f"train.py --algorithm {algorithm} --mode distributed", *FLAGS[algorithm], *extra
        )
    assert (code, other_code) == (0, 0), errors + other_errors
    assert_same(target, folder)
    assert "2 x 2" in output
    assert "Slowest rank:       rank " in output
    assert "starts ranks 2 to 3 of 4" in other_output
    record = runs.record(target)
    names = [worker["name"] for worker in record["workers"]]
    assert [name.split(" on ")[0] for name in names] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert record["slowest_rank"]["name"] in names
    assert all(sum(p["share"] for p in w["time_breakdown"].values()) > 0.9 for w in record["workers"])
    assert_reduction(record["reduction"], reduction, output)
    assert record["config"]["cluster"]["num_nodes"] == 2
    assert record["config"]["cluster"]["num_workers"] == 2


def assert_reduction(found: dict[str, Any], wanted: str, output: str) -> None:
    """The run recorded and printed how it sums and, with auto, what it measured."""
    said = " ".join(output.split())
    ways = {
        "ring": "one ring of all ranks",
        "hierarchical": "within nodes, then between them",
        "direct": "within nodes, then directly between all",
    }
    texts = {"ring": "ring", "hierarchical": "within nodes first", "direct": "directly"}
    assert f"gradient sums {ways[found['gradient']['used']]}" in said
    for trial in found.values():
        seconds = {way: trial[f"{way}_seconds"] for way in ways}
        if wanted != "auto":
            assert trial == {"used": wanted, "bytes": None, **dict.fromkeys(trial.keys() - {"used", "bytes"})}
            continue
        fastest = min(seconds, key=lambda way: seconds[way])
        assert trial["used"] == (fastest if seconds[fastest] <= 0.9 * seconds["ring"] else "ring")
        assert ", ".join(f"{texts[way]} {1e3 * seconds[way]:.3g} ms" for way in ways) in said
    if wanted == "auto":
        assert found["gradient"]["bytes"] > 4 * 4000 > found["small"]["bytes"]


def test_plain_scripts_inside_of_a_slurm_job_are_what_they_are_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {
        "SLURM_JOB_ID": 7,
        "SLURM_JOB_NUM_NODES": 2,
        "SLURM_STEP_ID": 0,
        "SLURM_PROCID": 1,
        "SLURM_NTASKS": 2,
        "SLURM_STEP_NUM_TASKS": 2,
        "SLURM_STEP_NUM_NODES": 2,
        "SLURM_NODEID": 1,
        "SLURM_RESTART_COUNT": 1,
        "MASTER_ADDR": "192.0.2.1",
        "MASTER_PORT": 29500,
    }
    for name, value in step.items():
        monkeypatch.setenv(name, str(value))
    actors = ("--num-actors", 2, "--set", "impala.num_learners=1")
    processes = []
    with contextlib.ExitStack() as stack:
        for algorithm in ("ppo", "a2c", "a3c", "impala"):
            flags = FLAGS.get(algorithm, SMALL) + (actors if algorithm == "impala" else ("--num-workers", 2))
            folder = tmp_path / f"{algorithm}_parallel"
            process = runs.start(
                f"train.py --algorithm {algorithm} --mode parallel", *flags, "--output-dir", folder
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        for algorithm in ("ppo", "a2c", "impala"):
            flags = (*FLAGS.get(algorithm, SMALL), "--num-threads", 1, "--output-dir", tmp_path / algorithm)
            assert main(algorithm, "sequential", False, [*map(str, flags)]) == 0
        for process in processes:
            _, errors = process.communicate(timeout=100)
            assert process.returncode == 0, errors
    folders = list(tmp_path.iterdir())
    assert len(folders) == 7
    for folder in folders:
        assert runs.record(folder)["status"] == "completed"
        assert runs.record(folder)["total_timesteps"] == 84 * 5
