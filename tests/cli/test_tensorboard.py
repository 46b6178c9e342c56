"""TensorBoard shows runs under short names, also runs that started after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcb.cli.tensorboard import link_runs, short_name


def add_run(folder: Path) -> Path:
    logs = folder / "logs" / "PPO_Parallel"
    logs.mkdir(parents=True)
    (logs / "events.out.tfevents.1").touch()
    return logs


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("ppo_parallel_procgen-coinrun-v0_seed42_20261129-101611", "ppo_parallel_coinrun_seed42_1129-101611"),
        ("my_study/ppo_parallel_coinrun_seed42", "my_study/ppo_parallel_coinrun_seed42"),
        ("study_20261129-101611/ppo_parallel_coinrun_seed1", "study_1129-101611/ppo_parallel_coinrun_seed1"),
        (".", "runs"),
    ],
)
def test_names_are_short(path: str, name: str, tmp_path: Path) -> None:
    assert short_name(Path(path), tmp_path / "runs") == name


def test_every_run_is_linked_once(tmp_path: Path) -> None:
    runs, links = tmp_path / "runs", tmp_path / "links"
    first = add_run(runs / "ppo_parallel_procgen-coinrun-v0_seed1_20261129-101611")
    for _ in range(2):
        link_runs([runs, tmp_path / "missing"], links)
    second = add_run(runs / "study" / "ppo_parallel_coinrun_seed1")
    link_runs([runs], links)
    assert (links / "ppo_parallel_coinrun_seed1_1129-101611").resolve() == first
    assert (links / "study" / "ppo_parallel_coinrun_seed1").resolve() == second
    assert len([path for path in links.rglob("*") if path.is_symlink()]) == 2
