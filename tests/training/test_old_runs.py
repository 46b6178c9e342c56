"""Runs of an earlier version still resume. They train in this process, because starting Python is slow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlcb.cli.train import main
from tests import runs

OLD_RUNS = Path(__file__).resolve().parent.parent / "data" / "old_runs"


@pytest.mark.parametrize(
    ("algorithm", "mode"), [("ppo", "sequential"), ("a2c", "parallel"), ("impala", "parallel")]
)
def test_an_old_run_resumes_where_it_ended(algorithm: str, mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(OLD_RUNS / f"{algorithm}_{mode}", folder)
    before, rows_before = runs.record(folder), runs.rows(folder)
    per_update = before["total_timesteps"] // before["total_updates"]
    total = before["total_timesteps"] + 3 * per_update
    flags = ("--resume", "--output-dir", str(folder), "--total-timesteps", str(total), "--num-threads", "1")
    assert main(algorithm, mode, False, [*flags, "--set", "logging.tensorboard=false"]) == 0
    after, rows = runs.record(folder), runs.rows(folder)
    assert after["status"] == "completed"
    assert after["total_timesteps"] == total
    assert after["total_updates"] == before["total_updates"] + 3
    assert after["start_time"] == before["start_time"]
    assert rows[: len(rows_before)] == rows_before
    assert [row["update"] for row in rows] == list(range(1, after["total_updates"] + 1))
    assert [row["timesteps"] for row in rows[-3:]] == [total - 2 * per_update, total - per_update, total]
    elapsed = [row["time/elapsed_seconds"] for row in rows]
    assert elapsed == sorted(elapsed)
    assert after["total_episodes"] >= before["total_episodes"]
    checkpoint = runs.checkpoint(folder)
    assert checkpoint["counters"] == {"updates": after["total_updates"], "timesteps": total}
    assert checkpoint["config"]["algorithm"] == algorithm
