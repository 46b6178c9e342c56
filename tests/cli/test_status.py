"""`rlcb status`: runs and studies as their files show them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlcb.cli.status import HEADS, main, statuses_of
from rlcb.config.yaml_file import build_config, dump_config
from rlcb.training.run_folder import RunFolder

NOW = 1_800_000_000.0
PARALLEL: dict[str, Any] = {
    "mode": "parallel", "env": {"num_envs": 8}, "parallel": {"num_workers": 4},
    "training": {"n_steps": 64, "batch_size": 128, "total_timesteps": 10 * 512},
}  # fmt: skip
NODES: dict[str, Any] = {
    "mode": "distributed", "env": {"num_envs": 8}, "cluster": {"num_nodes": 2, "num_workers": 4},
    "training": {"total_timesteps": None, "duration_hours": 2.0},
}  # fmt: skip


def make_run(folder: Path, data: dict[str, Any], updates: int = 0, age: float = 5.0) -> Path:
    """Write the files of a run that made `updates` updates of 512 timesteps and 4 seconds."""
    config = build_config(data, "test")
    files = RunFolder(folder, config)
    files.logs.mkdir(parents=True)
    files.config_path.write_text(dump_config(config))
    rows = [
        {"update": n, "timesteps": 512 * n, "time/elapsed_seconds": 4.0 * n, "time/fps": 1280.4,
         "rollout/ep_reward_mean": 2.0 + n}
        for n in range(1, updates + 1)
    ]  # fmt: skip
    if rows:
        files.rows.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"update": 99, "times')
    for path in (files.config_path, files.rows):
        if path.exists():
            os.utime(path, (NOW - age, NOW - age))
    return folder


def cells(folder: Path) -> dict[str, str]:
    (status,) = statuses_of(folder, NOW)
    return dict(zip(HEADS, (status.name, *status.cells), strict=True))


def test_a_running_run_shows_how_far_it_is_and_the_time_left(tmp_path: Path) -> None:
    found = cells(make_run(tmp_path / "run", PARALLEL, updates=4))
    # 4 of 10 updates in 16 s: 6 more take 24 s.
    assert found == {
        "run": str(tmp_path / "run"), "status": "running", "done": "40%", "timesteps": "2.0k", "FPS": "1,280",
        "return": "6.00", "left": "0:00:24", "last sign": "0:00:05 ago", "processes": "4 workers",
    }  # fmt: skip


def test_a_timed_run_on_nodes_has_the_rest_of_its_time_left(tmp_path: Path) -> None:
    found = cells(make_run(tmp_path / "run", NODES, updates=450))  # 1,800 s of 7,200
    assert (found["done"], found["left"], found["processes"]) == ("25%", "1:30:00", "2 nodes x 4 workers")


@pytest.mark.parametrize(
    ("updates", "age", "status"),
    [(0, 10, "starting"), (0, 121, "silent"), (3, 119, "running"), (3, 121, "silent")],
)
def test_a_run_without_a_sign_of_life_is_silent(
    tmp_path: Path, updates: int, age: float, status: str
) -> None:
    assert cells(make_run(tmp_path / "run", PARALLEL, updates, age))["status"] == status


def test_long_updates_make_the_command_patient(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", PARALLEL, 1, age=400.0)
    path = next(folder.glob("logs/*/metrics.jsonl"))
    path.write_text(json.dumps({"update": 1, "timesteps": 512, "time/elapsed_seconds": 100.0}) + "\n")
    os.utime(path, (NOW - 400, NOW - 400))
    assert cells(folder)["status"] == "running"  # 5 updates of 100 s


def test_a_record_decides_how_a_run_ended(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", PARALLEL, updates=10, age=9999.0)
    (folder / "benchmark_metrics.json").write_text(json.dumps({"status": "completed"}))
    assert (cells(folder)["status"], cells(folder)["done"], cells(folder)["left"]) == (
        "completed",
        "100%",
        "",
    )


def test_a_study_shows_all_runs_of_its_plan_and_the_last_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study"
    study.mkdir()
    (study / "study.yaml").write_text(
        "algorithms: [ppo]\nmodes: [parallel]\nenvs: [coinrun]\nseeds: [1, 2]\ntotal_timesteps: 5120\n"
    )
    (first, second) = [status.name for status in statuses_of(study, NOW)]
    folder = make_run(study / first, PARALLEL, updates=2)
    (folder / "training.log").write_text(
        "WARNING: one\nprogress\nWARNING: 2 workers of 1 thread share 1 core\nend\n"
    )
    assert main([str(study)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == " ".join(HEADS).split()
    assert lines[1].split()[0] == first and lines[2].split()[:3] == [second, "to", "do"]
    assert lines[3] == f"{first}: WARNING: 2 workers of 1 thread share 1 core"


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"{tmp_path} holds neither a run (config.yaml) nor a study (study.yaml)" in capsys.readouterr().err
