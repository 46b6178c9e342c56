"""The output of a run: progress lines at the right updates, nothing wider than a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcb.config.budget import Budget
from rlcb.config.config import Config
from rlcb.text import COLUMNS, counted, print_rows, short
from rlcb.training.console import RunProgress


def test_updates_of_other_workers_do_not_suppress_a_progress_line(capsys: pytest.CaptureFixture[str]) -> None:
    config = Config.model_validate(
        {"algorithm": "a3c", "mode": "parallel", "training": {"batch_size": None, "n_epochs": 1}}
        | {"logging": {"log_interval": 5}}
    )
    progress = RunProgress(config, Budget.of(config), 0, 0.0)
    for update in (3, 4, 7, 9, 16, 18, 20):  # of one worker, between those of others
        progress.update(
            {
                "update": update,
                "timesteps": 512 * update,
                "time/fps": 100.0,
                "time/elapsed_seconds": float(update),
                "rollout/ep_reward_mean": None,
                "rollout/ep_reward_std": None,
            }
        )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("update ")[1].split()[0] for line in lines] == ["7", "16", "20"]


def test_rows_fit_a_terminal_and_paths_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("runs") / ("a name with spaces " * 6).strip()
    print_rows({"short": "one", "long": "word " * 40, "none": "", "results": path}, indent=14)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "short         one"
    assert lines[-1] == f"results       {path}"
    wrapped = lines[1:-2]
    assert len(wrapped) == 4
    assert wrapped[0].startswith("long          word word")
    assert all(line.startswith(" " * 14 + "word") for line in wrapped[1:])
    assert max(len(line) for line in wrapped) <= COLUMNS
    assert " ".join(wrapped).split() == ["long", *["word"] * 40]


def test_large_numbers_are_shortened() -> None:
    assert [short(number) for number in (0, 4_096, 9_999_999, 10_000_000, 126_734_336)] == [
        *("0", "4,096", "9,999,999", "10.0M", "126.7M")
    ]


def test_numbers_and_their_nouns_agree() -> None:
    assert [counted(number, "worker") for number in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]
