"""Tables of strong and weak scaling hold what runs on more nodes measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcb.comparison.groups import LostGroup
from rlcb.comparison.lost import LostRun
from rlcb.comparison.scaling import scaling_tables, scalings
from rlcb.comparison.text_report import markdown, report, terminal
from tests.comparison_run_folders import RunSet, line


def add_nodes(
    study: RunSet, nodes: int, fps: float, seed: int = 1, envs: int = 64, batch: int = 2048, **settings: Any
) -> None:
    """Add a run on `nodes` machines with two processes each, which made `fps` timesteps per second."""
    timesteps = int(fps * 1800)
    study.add(
        line(5, 6, timesteps, 100),
        mode="distributed",
        seed=seed,
        settings={
            "cluster.num_nodes": nodes,
            "env.num_envs": envs,
            "training.batch_size": batch,
            **settings,
        },
        record={
            "average_fps": fps,
            "workers": [{}] * (2 * nodes),
            "time_breakdown": {"sync": {"share": 0.05 * nodes}, "learn": {"share": 1 - 0.05 * nodes}},
        },
    )


def test_strong_scaling_has_speedup_and_efficiency(tmp_path: Path) -> None:
    study = RunSet(tmp_path)
    for nodes, speeds in {4: (240, 260), 1: (100, 100), 2: (190, 170)}.items():
        for seed, fps in enumerate(speeds):
            add_nodes(study, nodes, fps, seed)
    comparison = study.compare()
    (table,) = scaling_tables(comparison)
    assert table.title == "Strong scaling: PPO, coinrun"
    rows = [[*row[:3], row[3].split(" ")[0], *row[4:]] for row in table.rows]
    assert rows == [
        ["1", "2", "64", "100.0", "1.00×", "100%", "5.0%", "2 of 2"],
        ["2", "4", "64", "180.0", "1.80×", "90%", "10.0%", "2 of 2"],
        ["4", "8", "64", "250.0", "2.50×", "62%", "20.0%", "2 of 2"],
    ]
    assert comparison.labels == [
        *("PPO distributed, 4 nodes", "PPO distributed, 1 node", "PPO distributed, 2 nodes"),
    ]
    for text in (terminal(comparison), report(comparison), markdown(comparison, "x.png")):
        assert text.count("Strong scaling: PPO, coinrun") == 1


def test_weak_scaling_is_told_from_strong_scaling(tmp_path: Path) -> None:
    study = RunSet(tmp_path)
    add_nodes(study, 1, 100)
    add_nodes(study, 2, 150)
    add_nodes(study, 2, 190, envs=128, batch=4096)
    comparison = study.compare()
    found = {
        each.kind: [r.estimates["average_fps"] for r in each.groups] for each in scalings(comparison.games[0])
    }
    assert {kind: [e.mean for e in estimates if e] for kind, estimates in found.items()} == {
        "strong": [100, 150],
        "weak": [100, 190],
    }
    assert comparison.labels == [
        "PPO distributed, 1 node, 64 envs",
        "PPO distributed, 2 nodes, 64 envs",
        "PPO distributed, 2 nodes, 128 envs",
    ]


@pytest.mark.parametrize("other", [{"training.learning_rate": 1e-3}, {"cluster.num_nodes": 1}])
def test_runs_that_differ_otherwise_are_no_scaling(tmp_path: Path, other: dict[str, Any]) -> None:
    study = RunSet(tmp_path)
    add_nodes(study, 1, 100)
    add_nodes(study, 2, 150, **{"training.gamma": 0.9, **other})
    assert scaling_tables(study.compare()) == []


def test_a_lost_run_belongs_to_the_group_with_its_nodes(tmp_path: Path) -> None:
    study = RunSet(tmp_path)
    add_nodes(study, 1, 100)
    add_nodes(study, 2, 150)
    facts = ("the run has not started", "ppo", "distributed", "procgen-coinrun-v0")
    lost = [LostRun(tmp_path / f"lost{nodes}", *facts, 9, nodes=nodes) for nodes in (2, 4)]
    comparison = study.compare(lost=lost)
    planned = {result.group.label: result.group.planned for result in comparison.games[0].groups}
    assert planned == {"PPO distributed, 1 node": 1, "PPO distributed, 2 nodes": 2}
    (whole,) = comparison.lost
    assert whole == LostGroup("PPO distributed, 4 nodes", "procgen-coinrun-v0", (lost[1],))
