"""Whole runs that sum gradients in low rank: all ranks have equal parameters, and a resumed run continues."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import cluster_runs, runs
from tests.cluster_runs import IMPALA, PPO, Nodes

pytestmark = pytest.mark.timeout(300)

LOW_RANK = ("--set", "cluster.compression=powersgd", "--set", "logging.tensorboard=false")
PROCGEN = (
    *("--env", "coinrun", "--num-envs", 6, "--n-steps", 8, "--set", "env.group_size=1"),
    *("--set", "model.architecture=nature", "--set", "model.hidden_size=64", *LOW_RANK),
    *("--set", "parallel.check_every=1"),
)


def numbers_sent(rank: int) -> tuple[int, int]:
    """How many numbers the two sums of a rank have for the Nature CNN 64 wide with 15 actions, and how many a
    plain sum has; with PPO's five statistics."""
    matrices = [(32, 3 * 64), (64, 32 * 16), (64, 64 * 9), (64, 1024), (15, 64), (1, 64)]
    biases = 32 + 64 + 64 + 64 + 15 + 1
    low_rank = [rank * (m + n) if 2 * rank * (m + n) <= m * n else m * n for m, n in matrices]
    return sum(low_rank) + biases + 5, sum(m * n for m, n in matrices) + biases + 5


@pytest.mark.parametrize("reduction", [pytest.param("ring", marks=pytest.mark.slow), "hierarchical"])
def test_unequal_nodes_learn_procgen_and_hold_the_same_parameters_bit_for_bit(
    reduction: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    flags = (*PROCGEN, "--batch-size", 24, "--n-epochs", 2, "--total-timesteps", 48 * 5)
    flags += ("--set", f"cluster.reduction={reduction}", "--set", "cluster.powersgd_rank=2")
    with Nodes(cluster_runs.own_address()) as nodes:
        for node, workers in enumerate((1, 2)):
            words = (*flags, "--output-dir", folder, *nodes.place, "--node-rank", node)
            command = runs.command(PPO, *words, "--num-workers", workers)
            nodes.processes.append(cluster_runs.start(command, TEST_RANK=node))
        (code, output, errors), (other_code, _, other_errors) = nodes.wait(120)
    assert (code, other_code) == (0, 0), errors + other_errors
    assert "differed" not in errors  # what a rank says whose parameters are not those of the others
    sent, plain = numbers_sent(2)
    said = f"powersgd of rank 2: {4 * sent / 1e3:,.1f} instead of {4 * plain / 1e3:,.1f} kB"
    assert said in " ".join(output.split())
    assert runs.record(folder)["total_timesteps"] == 48 * 5
    before, after = runs.rows(folder)[0], runs.rows(folder)[-1]
    assert before["train/grad_norm"] > 0
    assert after["train/grad_norm"] > 0
    errors_left = runs.checkpoint(folder)["learner"]["reduction"]["errors"]
    assert len(errors_left) == sum(m * n for m, n in ((32, 192), (64, 512), (64, 576), (64, 1024), (15, 64)))
    assert torch.isfinite(errors_left).all()
    assert errors_left.any()


@pytest.mark.slow
def test_learners_of_impala_on_two_nodes_hold_the_same_parameters(tmp_path: Path) -> None:
    flags = (*PROCGEN, "--num-actors", 1, "--set", "impala.num_learners=1", "--output-dir", tmp_path / "run")
    with Nodes(cluster_runs.own_address()) as nodes:
        nodes.start(IMPALA, *flags, "--total-timesteps", 48 * 10)
        (code, output, errors), (other_code, _, other_errors) = nodes.wait(120)
    assert (code, other_code) == (0, 0), errors + other_errors
    assert "differed" not in errors
    assert "powersgd of rank 4" in " ".join(output.split())
    assert runs.record(tmp_path / "run")["total_updates"] == 10


@pytest.mark.slow
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    """The MLP has one matrix that is sent in low rank, 64 x 64."""

    def train(folder: Path, updates: int, *extra: object) -> torch.Tensor:
        flags = (
            "--env",
            "CartPole-v1",
            "--num-envs",
            8,
            "--n-steps",
            16,
            "--num-workers",
            1,
            *LOW_RANK,
            *extra,
        )
        with Nodes(cluster_runs.own_address()) as nodes:
            nodes.start(
                "train.py --algorithm a2c --mode distributed",
                *(*flags, "--learning-rate", 0.01, "--seed", 3, "--output-dir", folder),
                *("--total-timesteps", 128 * updates),
            )
            (code, _, errors), (other_code, _, other_errors) = nodes.wait(120)
        assert (code, other_code) == (0, 0), errors + other_errors
        return runs.parameters(folder)

    expected = train(tmp_path / "whole", 8)
    train(tmp_path / "resumed", 4)
    saved = runs.checkpoint(tmp_path / "resumed")["learner"]["reduction"]
    assert saved["errors"].shape == (64 * 64,)
    assert saved["errors"].any()
    found = train(tmp_path / "resumed", 8, "--resume", "auto")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
