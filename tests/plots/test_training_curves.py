"""Training curves show the right numbers with their units, and wrong input is refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from rlcb.errors import RunError, UsageError
from rlcb.plots.style import draw_training_curves, running_mean
from rlcb.plots.training_curves import levels_text, load_curves, locate, plot_run, run_title
from rlcb.text import count_text, duration_text, tick_text

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
algorithm: ppo
mode: sequential
env: {id: procgen-coinrun-v0, distribution_mode: easy, num_levels: 200}
training: {seed: 7}
"""


def row(update: int, **changes: Any) -> dict[str, Any]:
    return {
        "timesteps": 4096 * update,
        "update": update,
        "time/elapsed_seconds": 36.0 * update,
        "time/fps": 100.0 + update,
        "time/fps_average": 200.0 + update,
        "rollout/ep_reward_mean": 5.0 + update,
        "rollout/ep_reward_std": 2.0,
        "rollout/episodes": 30 * update,
        "train/policy_loss": -0.001 * update,
        "train/value_loss": 0.5 / update,
        "train/entropy": 2.7 - 0.01 * update,
        **{key.replace("__", "/"): value for key, value in changes.items()},
    }


def write_log(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log file of a run of 20 updates, in its folder."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(CONFIG)
    rows = [row(update) for update in range(1, 21)]
    return write_log(tmp_path / "run/logs/PPO_Sequential/metrics.jsonl", rows)


def panel(figure: Figure, name: str) -> Axes:
    return next(ax for ax in figure.axes if ax.get_title(loc="left") == name)


def words(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts if text.get_text()]


def draw(log: Path, x: str = "timesteps") -> Figure:
    figure = draw_training_curves(load_curves(log), "title", x=x)
    figure.draw_without_rendering()
    return figure


def run_script(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "plot_results.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_return_panel_shows_the_means_and_one_standard_deviation(log: Path) -> None:
    ax = panel(draw(log), "Episode return")
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_xdata(), 4096 * np.arange(1, 21))
    np.testing.assert_array_equal(line.get_ydata(), 5.0 + np.arange(1, 21))
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    at_tenth = corners[corners[:, 0] == 40960, 1]
    assert {at_tenth.min(), at_tenth.max()} == {13.0, 17.0}
    assert "mean of the last 100 episodes" in words(ax)
    assert "band: ± 1 standard deviation" in words(ax)
    assert "25.00" in words(ax)  # the last value, at the end of the line


def test_other_panels_show_their_series_and_name_their_units(log: Path) -> None:
    figure = draw(log)
    updates = np.arange(1, 21)
    window, average = panel(figure, "FPS").lines
    np.testing.assert_array_equal(window.get_ydata(), 100.0 + updates)
    np.testing.assert_allclose(average.get_ydata(), 4096 / 36)  # timesteps over seconds, resumed or not
    for name, unit, expected in (
        ("Policy loss", "mean per sample", -0.001 * updates),
        ("Value loss", "mean per sample", 0.5 / updates),
        ("Policy entropy", "nats", 2.7 - 0.01 * updates),
    ):
        ax = panel(figure, name)
        np.testing.assert_allclose(ax.lines[0].get_ydata(), expected)
        assert unit in words(ax)
    assert "timesteps per second" in words(panel(figure, "FPS"))
    assert panel(figure, "FPS").get_ylim()[0] == 0
    assert "raw reward" in words(panel(figure, "Episode return"))
    assert {ax.get_xlabel() for ax in figure.axes} == {"timesteps"}


def test_timesteps_are_written_with_k_and_hours_with_their_unit(log: Path) -> None:
    ax = panel(draw(log), "Episode return")
    assert "20k" in [label.get_text() for label in ax.get_xticklabels()]
    figure = draw(log, "hours")
    assert {ax.get_xlabel() for ax in figure.axes} == {"wall-clock time (hours)"}
    np.testing.assert_allclose(panel(figure, "FPS").lines[0].get_xdata(), 0.01 * np.arange(1, 21))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (500, "500"), (100_000, "100k"), (1_500_000, "1.5M"), (25_000_000, "25M"), (2e9, "2G")],
)
def test_counts_are_short(count: float, text: str) -> None:
    assert count_text(count) == text


def test_ticks_have_the_decimals_that_they_need() -> None:
    assert tick_text(30_000, np.array([0.0, 10_000, 20_000])) == "30,000"
    assert tick_text(0.25, np.array([0.0, 0.05, 0.1])) == "0.25"
    assert tick_text(-0.002, np.array([-0.004, -0.002, 0.0])) == "\N{MINUS SIGN}0.002"


def test_durations_come_in_their_natural_unit() -> None:
    assert [duration_text(each) for each in (14, 258, 28_800)] == ["14 seconds", "4.3 minutes", "8.0 hours"]


def test_a_long_run_also_gets_a_running_mean_that_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    losses = rng.normal(size=250)
    rows = [row(n, train__policy_loss=float(loss)) for n, loss in enumerate(losses, 1)]
    ax = panel(draw(write_log(tmp_path / "metrics.jsonl", rows)), "Policy loss")
    raw, smooth = ax.lines
    np.testing.assert_array_equal(raw.get_ydata(), losses)
    assert "mean of 5 updates" in words(ax)
    assert smooth.get_ydata()[100] == pytest.approx(losses[98:103].mean())
    assert smooth.get_ydata()[0] == pytest.approx(losses[:3].mean())


def test_running_mean_of_few_values_is_over_what_there_is() -> None:
    np.testing.assert_allclose(running_mean(np.array([1.0, 2.0, 6.0]), 3), [1.5, 3.0, 4.0])
    np.testing.assert_allclose(running_mean(np.array([4.0]), 5), [4.0])


def test_a_run_without_a_finished_episode_says_so(log: Path) -> None:
    missing = {"rollout__ep_reward_mean": None, "rollout__ep_reward_std": None, "rollout__episodes": 0}
    figure = draw(write_log(log, [row(1, **missing), row(2, **missing)]))
    ax = panel(figure, "Episode return")
    assert "no episode has finished yet" in words(ax)
    assert not ax.lines
    assert len(panel(figure, "FPS").lines) == 2
    assert plot_run(log)[0].exists()


def test_figures_that_are_null_are_left_out_and_a_single_row_is_a_dot(log: Path) -> None:
    line = panel(draw(write_log(log, [row(1, train__entropy=None), row(2)])), "Policy entropy").lines[0]
    assert list(line.get_xdata()) == [8192]
    assert line.get_marker() == "o"
    ax = panel(draw(write_log(log, [{"timesteps": 1}])), "Policy entropy")
    assert "not recorded" in words(ax)


def test_title_comes_from_the_run_and_no_text_leaves_the_picture(log: Path) -> None:
    settings = {"algorithm": "ppo", "mode": "parallel", "env": {"id": "CartPole-v1"}, "training": {"seed": 0}}
    assert run_title(settings) == "PPO parallel on CartPole-v1, seed 0"
    assert levels_text(settings) == ""
    procgen = {"env": {"id": "procgen-maze-v0", "distribution_mode": "hard", "num_levels": 0}}
    assert levels_text(procgen) == "hard, all levels"
    figure = draw_training_curves(load_curves(log), run_title(settings), "easy, 200 levels")
    figure.draw_without_rendering()
    title, facts = (text.get_text() for text in figure.texts)
    assert title == "PPO parallel on CartPole-v1, seed 0"
    assert facts == "81,920 timesteps · 12.0 minutes · 600 episodes · easy, 200 levels"
    width, height = figure.bbox.width, figure.bbox.height
    box = figure.get_tightbbox()
    assert box.x0 >= 0 and box.x1 * figure.dpi <= width
    assert box.y0 >= 0 and box.y1 * figure.dpi <= height


def test_names_with_dollar_signs_are_shown_as_they_are(log: Path) -> None:
    figure = draw_training_curves(load_curves(log), "PPO on $odd_env^$")
    figure.draw_without_rendering()
    assert not figure.texts[0].get_parse_math()


def test_the_picture_lies_in_the_run_by_default(log: Path) -> None:
    run = log.parents[2]
    assert plot_run(log) == [run / "training_curves.png"]
    assert imread(run / "training_curves.png").shape == (1080, 1800, 4)
    (run / "training_curves.png").unlink()
    assert plot_run(run) == [run / "training_curves.png"]


def test_beside_the_log_file_when_it_lies_in_no_run(log: Path) -> None:
    (log.parents[2] / "config.yaml").unlink()
    assert plot_run(log) == [log.parent / "training_curves.png"]


def test_the_run_is_found_from_any_folder(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = log.parents[2]
    monkeypatch.chdir(run)
    assert locate(Path("logs/PPO_Sequential/metrics.jsonl"))[1] == Path()
    monkeypatch.chdir(log.parent)
    for path in ("metrics.jsonl", "../PPO_Sequential/metrics.jsonl", ".", "../.."):
        assert locate(Path(path))[1] == run


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_the_suffix_says_the_format(log: Path, tmp_path: Path, suffix: str, magic: bytes) -> None:
    output = tmp_path / "new" / f"curves.{suffix}"
    assert plot_run(log, output) == [output]
    assert output.read_bytes().startswith(magic)
    assert list(output.parent.iterdir()) == [output]


def test_several_formats_are_written_beside_each_other(log: Path, tmp_path: Path) -> None:
    names = [tmp_path / f"v1.5.{suffix}" for suffix in ("svg", "pdf")]
    assert plot_run(log, tmp_path / "v1.5", formats=["svg", "pdf", "svg"]) == names
    assert plot_run(log, tmp_path / "v1.5.png", formats=["svg", "pdf"]) == names
    before = [path.read_bytes() for path in names]
    assert [path.read_bytes() for path in plot_run(log, names[0], formats=["svg", "pdf"])] == before
    assert not (tmp_path / "v1.5.png").exists()


def test_text_in_files_stays_text(log: Path, tmp_path: Path) -> None:
    svg, pdf = plot_run(log, tmp_path / "curves", formats=["svg", "pdf"])
    assert ">Policy entropy</text>" in svg.read_text()
    assert b"/FontFile2" in pdf.read_bytes() and b"/Type3" not in pdf.read_bytes()  # embedded TrueType


def test_settings_that_cannot_be_read_cost_only_the_title(log: Path) -> None:
    (log.parents[2] / "config.yaml").write_text("env: [")
    assert plot_run(log)[0].exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no rows"),
        ('{"timesteps": 1}\n{"timesteps\n{"timesteps": 3}\n', "line 2"),
        ('{"timesteps": 1}\n{"update": 2}\n', "line 2: timesteps = None is not a number"),
        ('{"timesteps": 1, "time/fps": "fast"}\n', "line 1: time/fps = 'fast' is not a number"),
        ("\xff\xfe", "not a text file"),
    ],
)
def test_logs_that_cannot_be_drawn_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=message):
        plot_run(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_last_line_cut_while_it_was_written_is_left_out(log: Path) -> None:
    with log.open("a") as file:
        file.write('{"timesteps": 81')
    assert len(load_curves(log)["timesteps"]) == 20


def test_paths_that_do_not_fit_are_refused(log: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no log file at"):
        plot_run(tmp_path / "missing.jsonl")
    with pytest.raises(UsageError, match=r"no logs/\*/metrics.jsonl in"):
        plot_run(tmp_path)
    with pytest.raises(UsageError, match=r"must end in one of \.png, \.svg, \.pdf"):
        plot_run(log, tmp_path / "curves.gif")
    write_log(log.parents[1] / "A2C_Sequential/metrics.jsonl", [row(1)])
    with pytest.raises(UsageError, match="several"):
        plot_run(log.parents[2])
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        plot_run(log, tmp_path / "folder.png")
    with pytest.raises(RunError, match="cannot write"):
        plot_run(log, log / "curves.png")


def test_hours_need_a_clock_in_the_log(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="time/elapsed_seconds"):
        plot_run(write_log(tmp_path / "metrics.jsonl", [{"timesteps": 1}]), x="hours")


def test_the_script_draws_and_refuses_in_one_line(log: Path) -> None:
    done = run_script("--log-file", "logs/PPO_Sequential/metrics.jsonl", "--x", "hours", cwd=log.parents[2])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Training curves: training_curves.png\n"
    refused = run_script("--log-file", log, "--output", "curves.jpg")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.startswith("plot_results.py: error: --output curves.jpg")


def test_asking_for_help_loads_neither_matplotlib_nor_torch() -> None:
    code = "import sys, plot_results; print([m for m in ('matplotlib', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"
