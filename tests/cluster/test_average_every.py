"""Nodes that learn by themselves hold the means of their parameters after each average."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlcb.config.yaml_file import build_config
from rlcb.errors import UsageError
from rlcb.rl.communicator import Communicator
from rlcb.training.base import ProcessSetup
from rlcb.training.trainer import Trainer
from tests import cluster_runs, runs
from tests.cluster_runs import Nodes

pytestmark = pytest.mark.timeout(300)


def lone_node(config: dict[str, Any], number: int) -> Trainer:
    """A trainer in this process that does what node `number` of two does between two averages.

    `config` is the configuration of the run on both nodes.
    """
    training = dict(config["training"])
    if training["batch_size"] is not None:
        training["batch_size"] //= 2
    env = {**config["env"], "num_envs": config["env"]["num_envs"] // 2}
    kept = {key: config[key] for key in ("algorithm", "model")}
    alone = build_config({**kept, "mode": "sequential", "env": env, "training": training}, "test")
    communicator = Communicator()
    communicator.rank = number  # its environments are the second half of all
    return Trainer(ProcessSetup(alone, communicator))


def vectors(trainer: Trainer) -> list[torch.Tensor]:
    """Parameters, and Adam's two moments."""
    learner = trainer.learner
    state = learner.optimizer.state[learner.parameters]
    return [learner.parameters, state["exp_avg"], state["exp_avg_sq"]]


def expected_after(config: dict[str, Any], updates: int, every: int) -> list[torch.Tensor]:
    """The means over two nodes at the end of `updates` updates with an average after each `every`."""
    nodes = [lone_node(config, number) for number in (0, 1)]
    means: list[torch.Tensor] = []
    for update in range(1, updates + 1):
        for node in nodes:
            node.iterate(0.01)
        means = [(one.double() + two.double()) / 2 for one, two in zip(*map(vectors, nodes))]
        if update % every == 0:
            for node in nodes:
                for vector, mean in zip(vectors(node), means):
                    vector.copy_(mean)
    for node in nodes:
        node.close()
    return means


@pytest.mark.parametrize(("algorithm", "every"), [("ppo", 1), ("ppo", 2), ("a2c", 3)])
def test_two_nodes_average_what_each_has_learned(algorithm: str, every: int, tmp_path: Path) -> None:
    flags = (
        *("--env", "CartPole-v1", "--num-envs", 8, "--n-steps", 8, "--learning-rate", 0.01, "--seed", 3),
        *("--set", "model.mlp_sizes=[8]", "--set", "training.normalize_rewards=false"),
        *("--set", "logging.tensorboard=false", "--set", f"cluster.average_every={every}"),
        *("--set", "parallel.check_every=1", "--num-workers", 2, "--total-timesteps", 64 * 5),
        *("--set", "env.group_size=1", "--gamma", 0.999, "--output-dir", tmp_path / "run"),
    )
    flags += ("--batch-size", 32) if algorithm == "ppo" else ()
    with Nodes(cluster_runs.own_address()) as nodes:
        (code, output, errors), (other_code, _, other_errors) = nodes.train(
            f"train.py --algorithm {algorithm} --mode distributed", *flags
        )
    assert (code, other_code) == (0, 0), errors + other_errors
    assert "averages of the nodes every" in output
    found = runs.checkpoint(tmp_path / "run")["learner"]
    means = expected_after(runs.record(tmp_path / "run")["config"], 5, every)
    torch.testing.assert_close(runs.parameters(tmp_path / "run").double(), means[0], atol=1e-5, rtol=0)
    state = found["optimizer"]["state"][0]
    for key, mean in zip(("exp_avg", "exp_avg_sq"), means[1:]):
        torch.testing.assert_close(state[key].double(), mean, atol=1e-5, rtol=1e-3)
    assert runs.record(tmp_path / "run")["total_timesteps"] == 64 * 5


def test_a_measured_number_is_recorded_printed_and_kept_when_the_run_is_resumed(tmp_path: Path) -> None:
    folder, found = tmp_path / "run", []
    for updates in (6, 12):
        flags = (
            *("--env", "CartPole-v1", "--num-envs", 8, "--n-steps", 8, "--set", "model.mlp_sizes=[8]"),
            *("--set", "logging.tensorboard=false", "--set", "cluster.average_every=auto"),
            *("--num-workers", 1, "--total-timesteps", 64 * updates, "--output-dir", folder),
            *(("--resume", "auto") if found else ()),
        )
        with Nodes(cluster_runs.own_address()) as nodes:
            (code, output, errors), (other_code, _, other_errors) = nodes.train(
                "train.py --algorithm a2c --mode distributed", *flags
            )
        assert (code, other_code) == (0, 0), errors + other_errors
        assert " ".join(output.split()).count("(measured: an average ") == 1
        found.append(runs.record(folder)["averages"])
    first, second = found
    assert first == second
    assert first["after_update"] == 4
    average, update, every = first["average_seconds"], first["update_seconds"], first["every"]
    assert average / (every * update + average) < 0.1
    assert runs.record(folder)["total_updates"] == 12


@pytest.mark.parametrize(
    ("algorithm", "training", "cluster", "message"),
    [
        ("impala", {}, {}, "only PPO and A2C have this setting, not IMPALA"),
        ("a2c", {}, {"compression": "bf16"}, "cluster.compression = bf16: no gradient is sent"),
        ("a2c", {}, {"overlap": True}, "cluster.overlap = True: no gradient is sent"),
        ("ppo", {"batch_size": 34}, {"node_workers": (1, 3)}, r"multiple of 4, the parts of .*\[1, 3\]"),
        (
            "ppo",
            {"batch_size": 33},
            {"num_nodes": 2},
            "batch_size = 33 must be a multiple of cluster.num_nodes",
        ),
    ],
)
def test_settings_that_contradict_it_are_refused(
    algorithm: str, training: dict[str, Any], cluster: dict[str, Any], message: str
) -> None:
    sizes = {"total_timesteps": 640, "n_steps": 16, "n_epochs": 1, "batch_size": None}
    data = {
        "algorithm": algorithm,
        "mode": "distributed",
        "env": {"id": "CartPole-v1", "num_envs": 8},
        "training": {**sizes, "normalize_advantages": algorithm != "impala", **training},
        "cluster": {"average_every": 2, **cluster},
    }
    with pytest.raises(UsageError, match=message):
        build_config(data, "test")
