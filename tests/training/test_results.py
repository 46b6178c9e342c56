"""The record of a run whose main process died before it could write one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.training.results import write_failed_record
from rlcb.training.run_folder import RunFolder
from tests import runs

ROW = {
    "timesteps": 1000,
    "update": 10,
    "time/elapsed_seconds": 50.0,
    "time/fps": 30.0,
    "time/fps_average": 25.0,  # since a restart, before which it was slower
    "rollout/episodes": 3,
    "rollout/ep_reward_mean": 1.5,
    "system/memory_gb": 0.5,
}


@pytest.fixture
def config() -> Config:
    return build_config({"algorithm": "ppo", "mode": "sequential"}, "test")


@pytest.fixture
def folder(tmp_path: Path, config: Config) -> RunFolder:
    folder = RunFolder(tmp_path / "run", config)
    folder.logs.mkdir(parents=True)
    folder.rows.write_text(json.dumps({**ROW, "system/memory_gb": 0.75}) + "\n" + json.dumps(ROW) + "\n")
    return folder


def test_the_metrics_cover_the_whole_run(folder: RunFolder, config: Config) -> None:
    write_failed_record(folder, config)
    record = runs.record(folder.root)
    assert (record["status"], record["total_timesteps"], record["total_updates"]) == ("failed", 1000, 10)
    assert record["average_fps"] == 20.0  # 1000 timesteps in 50 seconds
    assert record["final_fps"] == 30.0
    assert record["duration_hours"] == pytest.approx(50 / 3600)
    assert record["resource_usage"]["peak_memory_gb"] == 0.75
    assert record["start_time"] is None
    summary = json.loads((folder.root / "training_summary.json").read_text())
    assert (summary["avg_fps"], summary["final_reward"]) == (20.0, 1.5)


def test_the_fps_of_a_run_without_updates_is_null(folder: RunFolder, config: Config) -> None:
    folder.rows.unlink()
    write_failed_record(folder, config)
    record = runs.record(folder.root)
    assert (record["total_timesteps"], record["average_fps"], record["final_fps"]) == (0, None, None)


def test_an_existing_record_is_not_replaced(folder: RunFolder, config: Config) -> None:
    own = folder.root / "benchmark_metrics.json"
    own.write_text("its own")
    write_failed_record(folder, config)
    assert own.read_text() == "its own"
    assert not (folder.root / "training_summary.json").exists()


def test_damaged_rows_are_left_out_of_the_record(folder: RunFolder, config: Config) -> None:
    folder.rows.write_text("damaged\n" + folder.rows.read_text())
    write_failed_record(folder, config)
    record = runs.record(folder.root)
    assert (record["total_timesteps"], record["total_updates"]) == (1000, 10)


def test_a_record_that_cannot_be_written_does_not_hide_why_the_run_failed(
    folder: RunFolder, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    (folder.root / "training_summary.json").mkdir()
    write_failed_record(folder, config)
    assert "could not write the record of the failed run" in caplog.text
    assert not (folder.root / "benchmark_metrics.json").exists()
