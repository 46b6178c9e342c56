"""Elastic IMPALA in the distributed mode: node 0 learns, the others join it, leave it and come back."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from rlcb.cli import train_distributed, train_elastic
from rlcb.cluster.launch import as_starter, discover
from rlcb.config.config import Config
from rlcb.errors import UsageError
from tests import cluster_runs, rank_env, runs
from tests.cluster_runs import IMPALA, Nodes, fault

pytestmark = pytest.mark.timeout(200)

TINY = (
    *("--env", rank_env.ID, "--num-envs", 2, "--n-steps", 8, "--batch-size", 32, "--total-timesteps", 1e7),
    *("--set", "logging.tensorboard=false", "--set", "logging.snapshot_seconds=0", "--elastic"),
    *("--num-actors", 1, "--set", "impala.num_learners=1"),
)


def resolve(*flags: object, environ: dict[str, str] | None = None) -> Config:
    """The configuration of a process of an elastic run."""
    words = [str(each) for each in (*TINY, *flags)]
    arguments = train_distributed.make_parser("impala").parse_args(words)
    data = train_distributed.settings(arguments, "impala")
    cluster = train_distributed.cluster_settings(data)
    world = as_starter(discover(cluster, arguments.node_rank, environ or {}))
    return train_elastic.elastic_config(arguments, data, world)


TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "192.0.2.7",
    "MASTER_PORT": "29400",
}


@pytest.mark.parametrize(
    ("flags", "environ", "port"),
    [
        ((), {}, 29500),
        (("--master-port", 4000), {}, 4000),
        (("--master-port", 4000, "--accept-actors", 5000), {}, 5000),
        ((), TORCHRUN, 29400),
        ((), {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, 29401),  # torchrun listens at its own port
        (("--accept-actors", 5000), TORCHRUN, 5000),
    ],
)
def test_actors_join_at_the_port_of_the_run(
    flags: tuple[object, ...], environ: dict[str, str], port: int
) -> None:
    config = resolve(*flags, environ=environ)
    assert config.impala.actor_port == port
    assert (config.cluster.num_nodes, config.num_nodes, config.num_processes) == (None, 1, 1)
    assert config.accepts_actors


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--set", "cluster.overlap=true"),
            ("cluster.elastic = true", "cluster.overlap = True", "only node 0"),
        ),
        (("--set", "cluster.compression=bf16"), ("cluster.compression = bf16",)),
        (("--set", "cluster.average_every=2"), ("cluster.average_every = 2",)),
        (("--set", "cluster.reduction=ring"), ("cluster.reduction = ring",)),
        (("--set", "impala.max_remote_actors=0"), ("impala.max_remote_actors = 0", "greater than")),
    ],
)
def test_settings_of_runs_that_learn_on_all_nodes_are_refused(
    flags: tuple[object, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        resolve(*flags)
    for word in words:
        assert word in str(refused.value)


def test_only_impala_is_elastic_and_only_its_elastic_or_parallel_runs_accept_actors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_distributed, "end_process", lambda code: code)  # this process goes on
    assert train_distributed.main("ppo", ["--elastic", "--total-timesteps", "10"]) == 2
    assert "cluster.elastic = true: only IMPALA" in capsys.readouterr().err
    flags = [str(each) for each in TINY if each != "--elastic"]
    assert train_distributed.main("impala", [*flags, "--accept-actors", "4000"]) == 2
    error = capsys.readouterr().err
    assert "impala.actor_port = 4000" in error
    assert "set cluster.elastic to true" in error


class Elastic(Nodes):
    """Nodes that are started one by one."""

    def start_node(self, node: int, *flags: object) -> Any:
        namespace = self.namespaces[node % len(self.namespaces)]
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        words = runs.command(IMPALA, *TINY, *flags, *self.place[2:], "--node-rank", node)
        self.processes.append(cluster_runs.start([*inside, *words], TEST_RANK=node))
        return self.processes[-1]


def remote_actors(folder: Path) -> int:
    """The number of actors of other nodes at the newest update; -1 before the first."""
    if not list(folder.glob("logs/*/metrics.jsonl")):
        return -1
    rows = runs.rows(folder)
    return int(rows[-1]["impala/remote_actors"]) if rows else -1


def test_a_run_that_is_stopped_ends_the_other_nodes_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = (*fault(delay=0.002), "--output-dir", folder)
    with Elastic(cluster_runs.own_address()) as nodes:
        first, second = nodes.start_node(0, *flags), nodes.start_node(1, *flags)
        runs.wait_until(lambda: remote_actors(folder) == 1)
        first.send_signal(signal.SIGUSR1)
        (code, _, errors), (other_code, _, other_errors) = nodes.wait(60)
    assert (code, other_code) == (138, 1), errors  # torchrun starts what ended with 1 anew
    assert "was stopped" in other_errors.splitlines()[-1]
    assert second.returncode == 1
    assert runs.record(folder)["status"] == "interrupted"


def test_a_first_node_that_does_not_start_tells_the_others_why(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("algorithm: ppo")
    with Elastic(cluster_runs.own_address()) as nodes:
        nodes.start(IMPALA, *TINY, "--output-dir", folder)  # says how many nodes there are
        (code, _, errors), (other_code, _, other_errors) = nodes.wait(60)
    assert (code, other_code) == (2, 2), errors + other_errors
    reason = f"{folder} already holds a run"
    assert reason in errors
    assert reason in other_errors.splitlines()[-1]
