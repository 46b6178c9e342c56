"""Runs that an earlier version left are still compared and evaluated, through the scripts.

tests/data/old_runs holds three: PPO sequential and IMPALA parallel on CartPole, A2C parallel on coinrun.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests import runs

OLD_RUNS = Path(__file__).parent / "data" / "old_runs"
EPISODES = 2


@pytest.fixture
def old_runs(tmp_path: Path) -> Path:
    """A copy of the old runs, which commands may add files to."""
    return Path(shutil.copytree(OLD_RUNS, tmp_path / "old_runs"))


def test_old_runs_are_compared(old_runs: Path, tmp_path: Path) -> None:
    folders = sorted(old_runs.iterdir())
    done = runs.call("compare_results.py", "--runs", *folders, "--output", tmp_path / "comparison.png")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("PPO sequential", "IMPALA parallel", "A2C parallel", "CartPole-v1", "coinrun"):
        assert name in done.stdout
    assert (tmp_path / "comparison.html").exists()


@pytest.mark.parametrize("name", sorted(path.name for path in OLD_RUNS.iterdir()))
def test_a_final_checkpoint_of_an_old_run_is_evaluated(old_runs: Path, tmp_path: Path, name: str) -> None:
    record, output = runs.record(old_runs / name), tmp_path / "result.json"
    flags = ("--num-episodes", EPISODES, "--max-episode-steps", 20, "--num-threads", 1, "--output", output)
    done = runs.call("evaluate.py", old_runs / name, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(output.read_text())
    assert result["algorithm"] == record["algorithm"]
    assert result["training_mode"] == record["training_mode"]
    assert result["env"] == record["env"]
    assert result["timesteps"] == record["total_timesteps"]
    for split in result["splits"].values():
        assert split["episodes"] == EPISODES
        assert all(0 < length <= 20 for length in split["lengths"])
