"""The output of a run: progress lines at the right updates, nothing wider than a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pytest

from rlcb.config.budget import Budget
from rlcb.config.config import Config
from rlcb.progress import CELLS, FRAME, ProgressBar, fitted
from rlcb.text import COLUMNS, brief, counted, print_rows, short
from rlcb.training.console import RunProgress, describe_joined, progress_parts


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


def test_brief_numbers_have_one_decimal_and_at_most_six_characters() -> None:
    numbers = (0, 999, 1_000, 12_345, 999_949, 999_950, 1_234_567, 126_734_336, 2_500_000_000)
    texts = ["0", "999", "1.0k", "12.3k", "999.9k", "1.0M", "1.2M", "126.7M", "2.5G"]
    assert [brief(number) for number in numbers] == texts


ROW = {"timesteps": 1_234_567, "time/fps": 12_345.6, "rollout/ep_reward_mean": -12.345}


def test_a_progress_text_is_never_cut_off_beside_a_bar_of_ten_cells() -> None:
    parts = ["10:59:59 left", *progress_parts(ROW)]
    assert fitted(parts, 80) == "10:59:59 left · 1.2M timesteps · 12,346 FPS · return -12.35"
    assert fitted(parts, 60) == "10:59:59 left · 1.2M timesteps · 12,346 FPS"
    assert fitted(parts, 10) == "10:59:59 left"
    for columns in range(40, 120):
        assert len(fitted(parts, columns)) + FRAME + CELLS <= columns


def written_to(terminal: int) -> str:
    """Close a terminal whose other end is closed, and return what it showed.

    The system hands over what was written in pieces, the last ones after a moment if it is busy.
    """
    pieces = []
    with contextlib.suppress(OSError):  # raised behind the last piece
        while piece := os.read(terminal, 65536):
            pieces.append(piece)
    os.close(terminal)
    return b"".join(pieces).decode()


def test_the_bar_fills_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    main, worker = pty.openpty()
    fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(worker, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        bar = ProgressBar.on_terminal(leave=True)
        assert bar is not None
        bar.show(0.5, ["10:59:59 left", *progress_parts(ROW)])
        bar.close()
    shown = written_to(main).split("\r")
    last = [each for each in shown if "FPS" in each][-1].rstrip("\n")
    assert len(last) <= 80 and last.endswith("return -12.35") and last.startswith(" 50%|")
    assert last.index("|", 5) - 5 >= CELLS


def test_the_time_left_comes_from_the_nearer_limit() -> None:
    assert Budget(100, None, 60.0).seconds_left(0, 20.0) == 40.0
    assert Budget(100, 1000, None).seconds_left(0, 5.0) is None
    assert Budget(100, 1000, None).seconds_left(4, 20.0) == pytest.approx(30.0)
    assert Budget(100, 1000, 25.0).seconds_left(4, 20.0) == 5.0
    assert Budget(100, None, 60.0).seconds_left(9, 61.0) == 0.0


def test_numbers_and_their_nouns_agree() -> None:
    assert [counted(number, "worker") for number in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]


def config_of(algorithm: str = "ppo", mode: str = "sequential", **training: object) -> Config:
    """A run with updates of 32 timesteps."""
    settings = {"n_steps": 8, "batch_size": 32 if algorithm != "a3c" else None, **training}
    once = {} if algorithm == "ppo" else {"n_epochs": 1}
    if algorithm == "impala":
        once["normalize_advantages"] = False
    return Config.model_validate(
        {"algorithm": algorithm, "mode": mode, "env": {"num_envs": 4}, "training": {**settings, **once}}
    )


@pytest.mark.parametrize(("timesteps", "warned"), [(1, True), (31, True), (32, False), (33, False)])
def test_fewer_timesteps_than_an_update_are_reported_before_the_run_begins(
    timesteps: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(total_timesteps=timesteps)
    RunProgress(config, Budget.of(config), 0, 0.0)
    rule = "one update takes 32 timesteps, so the run makes 32; a smaller training.n_steps or env.num_envs"
    expected = [f"training.total_timesteps = {timesteps}: {rule} makes updates shorter"]
    assert caplog.messages == (expected if warned else [])
    caplog.clear()
    RunProgress(config, Budget.of(config), 1, 5.0)  # a resumed run
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("algorithm", "mode", "words"),
    [
        ("ppo", "sequential", ["the first update of 32 timesteps", "training.n_steps or env.num_envs"]),
        ("a3c", "parallel", ["worker 0's first update of ", "training.n_steps or env.num_envs"]),
        ("impala", "parallel", ["the first update of 32 timesteps", "training.batch_size makes"]),
    ],
)
def test_a_first_update_that_outlasts_the_time_limit_is_reported_once(
    algorithm: str, mode: str, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(algorithm, mode, duration_hours="36s", total_timesteps=None)
    progress = RunProgress(config, Budget.of(config), 0, 0.0)
    progress.refresh(35.9)
    assert caplog.messages == []
    for elapsed in (36.1, 36.2, 50.0):
        progress.refresh(elapsed)
    (message,) = caplog.messages
    assert message.startswith("the limit of 36 s has passed, and ")
    for word in words:
        assert word in message


def test_a_run_with_an_update_is_not_late(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(duration_hours="36s", total_timesteps=None)
    RunProgress(config, Budget.of(config), 1, 0.0).refresh(40.0)
    unlimited = config_of(total_timesteps=64)
    RunProgress(unlimited, Budget.of(unlimited), 0, 0.0).refresh(1e6)
    assert caplog.messages == []


def test_the_summary_names_the_hosts_that_wrote_unrolls_if_others_took_part() -> None:
    remote = {"other_hosts": 1, "unrolls": {"gpu1": 1200, "gpu2": 34}, "unrolls_late": 0, "events": []}
    assert describe_joined(remote) == {"Unrolls": "1,200 by gpu1, 34 by gpu2"}
    late = describe_joined({**remote, "unrolls_late": 1500})
    assert late == {"Unrolls": "1,200 by gpu1, 34 by gpu2; 1,500 came too late"}
    assert describe_joined({**remote, "other_hosts": 0}) == describe_joined(None) == {}
