"""The job script on a real SLURM of two nodes: it trains, is preempted, queued again, and completes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import cluster_runs, rank_env, runs
from tests.cluster_runs import PPO, TINY, fault
from tests.slurm_cluster import Slurm, slurm_cluster

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster") as cluster:
        yield cluster


def submit(
    slurm: Slurm, folder: Path, *flags: object, script: str = PPO, options: tuple[str, ...] = ()
) -> str:
    given = {"PROJECT": runs.PROJECT, "PYTHON": sys.executable, "OUTPUT": folder}
    place = ("--parsable", "--cpus-per-task=1", f"--output={slurm.folder}/job-%j.out")
    job = runs.PROJECT / "cluster" / "slurm.sbatch"
    return slurm.call("sbatch", *place, *options, job, *script.split(), *flags, **given).strip()


def log(slurm: Slurm, job: str) -> str:
    return (slurm.folder / f"job-{job}.out").read_text()


def test_a_job_is_preempted_queued_again_goes_on_and_completes(slurm: Slurm, tmp_path: Path) -> None:
    folder, updates = tmp_path / "run", 1000
    flags = (*TINY, *fault(delay=0.001), "--num-workers", 1, "--total-timesteps", 32 * updates)
    job = submit(slurm, folder, *flags)
    runs.wait_for_rows(folder, 10, timeout=90)
    slurm.call("scancel", "--signal=USR1", "--batch", job)  # as before the time limit
    slurm.wait_for_state(job, ("PENDING", 1), timeout=60)
    record = runs.record(folder)
    assert record["status"] == "interrupted", log(slurm, job)
    assert 0 < record["total_updates"] < updates
    assert record["total_timesteps"] == runs.rows(folder)[-1]["timesteps"]
    cluster_runs.assert_nothing_left(folder)

    slurm.start_now(job)
    slurm.wait_for_state(job, ("COMPLETED", 1), timeout=120)
    assert [row["update"] for row in runs.rows(folder)] == list(range(1, updates + 1))
    record = runs.record(folder)
    assert (record["status"], record["total_timesteps"]) == ("completed", 32 * updates)
    assert [worker["name"] for worker in record["workers"]] == ["rank 0 on rlcb-n1", "rank 1 on rlcb-n2"]
    assert "start 2, on rlcb-n[1-2]; node 0 is rlcb-n1:" in log(slurm, job)
    cluster_runs.assert_nothing_left(folder)


def test_a_task_for_each_worker_is_a_rank_of_its_own(slurm: Slurm, tmp_path: Path) -> None:
    folder, updates = tmp_path / "run", 20
    flags = (*TINY, "--total-timesteps", 32 * updates)
    job = submit(slurm, folder, *flags, options=("--ntasks-per-node=2",))
    slurm.wait_for_state(job, ("COMPLETED", 0), timeout=90)
    record = runs.record(folder)
    assert (record["status"], record["total_timesteps"]) == ("completed", 32 * updates)
    assert [worker["name"] for worker in record["workers"]] == [
        *("rank 0 on rlcb-n1", "rank 1 on rlcb-n1", "rank 2 on rlcb-n2", "rank 3 on rlcb-n2"),
    ]
    assert [row["update"] for row in runs.rows(folder)] == list(range(1, updates + 1))
    cluster_runs.assert_nothing_left(folder)


def test_nodes_may_have_different_numbers_of_tasks(slurm: Slurm, tmp_path: Path) -> None:
    folder, updates = tmp_path / "run", 20
    flags = (*TINY, "--num-envs", 6, "--batch-size", 24, "--total-timesteps", 48 * updates)
    options = ("--ntasks-per-node=2", "--ntasks=3", "--distribution=block")  # at most two on each node
    job = submit(slurm, folder, *flags, options=options)
    slurm.wait_for_state(job, ("COMPLETED", 0), timeout=90)
    record = runs.record(folder)
    assert (record["status"], record["total_timesteps"]) == ("completed", 48 * updates)
    assert record["config"]["cluster"]["node_workers"] == [2, 1], log(slurm, job)
    assert [worker["name"] for worker in record["workers"]] == [
        *("rank 0 on rlcb-n1", "rank 1 on rlcb-n1", "rank 2 on rlcb-n2"),
    ]
    cluster_runs.assert_nothing_left(folder)


def test_tasks_that_contradict_the_flags_are_refused_and_not_queued_again(
    slurm: Slurm, tmp_path: Path
) -> None:
    job = submit(slurm, tmp_path / "run", *TINY, "--num-nodes", 3)
    slurm.wait_for_state(job, ("FAILED", 0), timeout=60)
    assert "cluster.num_nodes = 3 contradicts SLURM_STEP_NUM_NODES = 2" in log(slurm, job)
    assert not (tmp_path / "run").exists()


def test_one_task_on_each_node_starts_the_actors_and_learners_of_impala(slurm: Slurm, tmp_path: Path) -> None:
    folder, updates = tmp_path / "run", 40
    flags = ("--env", rank_env.ID, "--num-envs", 4, "--n-steps", 8, "--total-timesteps", 32 * updates)
    flags = (
        *flags,
        "--num-actors",
        1,
        "--set",
        "impala.num_learners=1",
        "--set",
        "logging.tensorboard=false",
    )
    job = submit(slurm, folder, *flags, script=cluster_runs.IMPALA)
    slurm.wait_for_state(job, ("COMPLETED", 0), timeout=90)
    record = runs.record(folder)
    assert (record["status"], record["total_timesteps"]) == ("completed", 32 * updates)
    assert [worker["name"] for worker in record["workers"]] == [
        *("rank 0 on rlcb-n1", "rank 1 on rlcb-n2", "actor 0 on rlcb-n1", "actor 1 on rlcb-n2"),
    ]
    cluster_runs.assert_nothing_left(folder)


def test_a_study_over_nodes_trains_evaluates_and_compares(slurm: Slurm, tmp_path: Path) -> None:
    study = tmp_path / "study"
    flags = ("--algorithms", "ppo", "--modes", "distributed", "--nodes", 1, 2, "--envs", "CartPole-v1")
    sizes = {"env.num_envs": 8, "training.n_steps": 8, "training.batch_size": 32, "model.mlp_sizes": "[8]"}
    settings = [f"--set={key}={value}" for key, value in sizes.items()]
    budget = ("--seeds", 3, "--total-timesteps", 640, "--evaluate-episodes", 2, "--num-workers", 1)
    slurm.call(
        *(sys.executable, runs.PROJECT / "run_benchmark.py", *flags, *budget, *settings),
        *("--output-dir", study, "--launcher", "slurm", "--slurm-option", "mem=200"),
    )
    slurm.wait_for_state(newest_job(slurm), ("COMPLETED", 0), timeout=180)
    logs = "".join(path.read_text() for path in sorted(study.glob("slurm/*.out")))
    for nodes in (1, 2):
        folder = study / f"ppo_distributed_{nodes}nodes_CartPole-v1_seed3"
        record = runs.record(folder)
        assert (record["status"], record["total_timesteps"]) == ("completed", 640), logs
        assert record["config"]["cluster"]["num_nodes"] == nodes
        names = [f"rank {rank} on rlcb-n{rank + 1}" for rank in range(nodes)]
        assert [worker["name"] for worker in record["workers"]][1:] == names[1:], logs
        assert list(folder.glob("evaluation/*.json"))
        cluster_runs.assert_nothing_left(folder)
    report = (study / "comparison_report.txt").read_text()
    assert "Strong scaling: PPO, CartPole-v1" in report
    table = report.split("Strong scaling: PPO, CartPole-v1")[1]
    assert [line.split()[:3] for line in table.splitlines()[4:6]] == [["1", "1", "8"], ["2", "2", "8"]]


def newest_job(slurm: Slurm) -> str:
    """The number of the job that was submitted last."""
    numbers = slurm.call("squeue", "--noheader", "--format=%A").split()
    return max(numbers, key=int)
