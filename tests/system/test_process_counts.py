"""Runs on Procgen compute equal numbers at the default settings, however many processes share the work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import cluster_runs, runs
from tests.cluster_runs import torchrun

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

SMALL = (
    *("--env", "bigfish", "--num-envs", 8, "--n-steps", 24, "--total-timesteps", 8 * 24 * 2),
    *("--set", "model.architecture=nature", "--set", "model.hidden_size=16"),
    *("--set", "logging.tensorboard=false", "--num-threads", 1),
)
FLAGS = {
    "ppo": (*SMALL, "--n-epochs", 1, "--batch-size", 96),
    "a2c": SMALL,
    "impala": (*SMALL, "--batch-size", 8 * 24),
}


def train(algorithm: str, mode: str, folder: Path, *flags: object) -> Path:
    """Train in one process or with workers of this machine; return the folder."""
    script = f"train.py --algorithm {algorithm} --mode {mode}"
    result = runs.run(script, *FLAGS[algorithm], *flags, "--output-dir", folder)
    assert result.returncode == 0, result.stderr
    return folder


def assert_equal_runs(folder: Path, alone: Path) -> None:
    """Parameters within 1e-6, and the environments in equal states.

    After more steps of the optimizer, floating-point error grows: it flips single rectifiers.
    """
    ours, theirs = runs.checkpoint(folder), runs.checkpoint(alone)
    assert torch.equal(ours["collector"]["observations"], theirs["collector"]["observations"])
    assert ours["collector"]["running_rewards"] == theirs["collector"]["running_rewards"]
    torch.testing.assert_close(runs.parameters(folder), runs.parameters(alone), atol=1e-6, rtol=0)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_workers_and_ranks_compute_what_one_process_computes(algorithm: str, tmp_path: Path) -> None:
    alone = train(algorithm, "sequential", tmp_path / "alone")
    for workers in (2, 8):
        folder = train(algorithm, "parallel", tmp_path / f"{workers} workers", "--num-workers", workers)
        assert_equal_runs(folder, alone)
    for ranks in (2, 4):
        folder = tmp_path / f"{ranks} ranks"
        script = f"train.py --algorithm {algorithm} --mode distributed"
        process = cluster_runs.start(torchrun(script, *FLAGS[algorithm], "--output-dir", folder, ranks=ranks))
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        assert_equal_runs(folder, alone)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_ranks_compute_equal_numbers_however_nodes_share_them(algorithm: str, tmp_path: Path) -> None:
    alone = train(algorithm, "sequential", tmp_path / "alone")
    script, address = f"train.py --algorithm {algorithm} --mode distributed", cluster_runs.own_address()
    for sizes in ((1, 3), (2, 2), (4,)):
        folder = tmp_path / f"{sizes}"
        flags = (*FLAGS[algorithm], "--output-dir", folder)
        with cluster_runs.Nodes(address) as nodes:
            if len(sizes) == 2:
                nodes.start_agents(cluster_runs.agents(address, script, *flags, sizes=sizes))
            else:
                nodes.start_agents([torchrun(script, *flags, ranks=4)])
            for code, _, errors in nodes.wait(200):
                assert code == 0, errors
        assert_equal_runs(folder, alone)
        cluster = runs.record(folder)["config"]["cluster"]
        assert (cluster["num_nodes"], cluster["node_workers"]) == (len(sizes), [1, 3] if 3 in sizes else None)


def test_actors_without_policy_lag_compute_what_one_process_computes(tmp_path: Path) -> None:
    alone = train("impala", "sequential", tmp_path / "alone")
    for actors in (2, 4):
        extra = ("--num-actors", actors, "--set", "impala.num_learners=1", "--set", "impala.max_policy_lag=0")
        folder = train("impala", "parallel", tmp_path / f"{actors} actors", *extra)
        torch.testing.assert_close(runs.parameters(folder), runs.parameters(alone), atol=1e-6, rtol=0)


def test_a_run_of_an_older_version_resumes_with_the_levels_of_its_own_groups(tmp_path: Path) -> None:
    """Older versions divided 8 environments of 2 workers into groups of 4, and also recorded null."""
    resumed = []
    for name in ("given", "null"):
        folder = train("ppo", "parallel", tmp_path / name, "--num-workers", 2, "--set", "env.group_size=4")
        if name == "null":
            path = folder / "config.yaml"
            path.write_text(path.read_text().replace("group_size: 4", "group_size: null"))
            final = folder / "checkpoints" / "ppo_parallel_final.pt"
            checkpoint = torch.load(final, weights_only=True)
            checkpoint["config"]["env"]["group_size"] = None
            torch.save(checkpoint, final)
        again = ("--resume", "--output-dir", folder, "--total-timesteps", 8 * 24 * 4)
        result = runs.run("train_ppo_parallel.py", *again)
        assert result.returncode == 0, result.stderr
        resumed.append(folder)
    assert_equal_runs(*resumed)
    assert runs.record(resumed[1])["total_timesteps"] == 8 * 24 * 4
