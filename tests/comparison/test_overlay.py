"""Several runs in one picture: short names, means of seeds, and positions and formats of the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from rlcb.cli.plot import main
from rlcb.comparison.groups import Group, group_runs
from rlcb.comparison.overlay import draw_runs, short_names
from rlcb.comparison.runs import load_run
from tests.comparison_run_folders import RunSet, line, write_run

COINRUN, MAZE = "procgen-coinrun-v0", "procgen-maze-v0"


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path / "study")


def groups_of(study: RunSet) -> list[Group]:
    return group_runs([(0, load_run(path)) for path in study.paths])


def drawn(study: RunSet, x: str = "timesteps") -> Figure:
    figure = draw_runs(groups_of(study), x)
    figure.draw_without_rendering()
    return figure


def panel(figure: Figure, start: str) -> Axes:
    return next(ax for ax in figure.axes if ax.get_title(loc="left").startswith(start))


def words(ax: Axes) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in ax.texts if text.get_text()]


class TestNames:
    @pytest.mark.parametrize(
        ("runs", "names", "common"),
        [
            ([("ppo", "parallel", COINRUN)], ["PPO parallel"], "coinrun"),
            (
                [("ppo", "parallel", COINRUN), ("a2c", "parallel", COINRUN)],
                ["PPO", "A2C"],
                "parallel, coinrun",
            ),
            (
                [("ppo", "sequential", COINRUN), ("ppo", "parallel", COINRUN)],
                ["sequential", "parallel"],
                "PPO, coinrun",
            ),
            ([("ppo", "parallel", COINRUN), ("ppo", "parallel", MAZE)], ["coinrun", "maze"], "PPO parallel"),
            (
                [("ppo", "parallel", COINRUN), ("a2c", "sequential", MAZE)],
                ["PPO parallel, coinrun", "A2C sequential, maze"],
                "",
            ),
        ],
    )
    def test_names_have_the_parts_that_differ(
        self, study: RunSet, runs: list[tuple[str, str, str]], names: list[str], common: str
    ) -> None:
        for algorithm, mode, env in runs:
            study.add(line(3, 6, 900, 60), algorithm, mode, env)
        assert short_names(groups_of(study)) == (names, common)

    def test_settings_that_differ_are_named(self, study: RunSet) -> None:
        for rate in (1e-3, 5e-4):
            study.add(line(3, 6, 900, 60), settings={"training.learning_rate": rate})
        study.add(line(3, 6, 900, 60), "a2c")
        names = short_names(groups_of(study))
        assert names == (["PPO, rate 0.001", "PPO, rate 0.0005", "A2C"], "sequential, coinrun")


class TestPicture:
    def test_seeds_are_thin_lines_and_their_mean_a_thick_one(self, study: RunSet) -> None:
        study.add_ends({"sequential": [2.0, 4.0]}, env=COINRUN)
        study.add(line(9, 9, 1000, 100), mode="parallel")
        figure = drawn(study)
        ax = panel(figure, "Episode return over timesteps")
        curves = [each for each in ax.lines if len(each.get_ydata()) > 2]
        thin = [each.get_ydata() for each in curves if each.get_linewidth() < 1]
        thick = [each.get_ydata() for each in curves if each.get_linewidth() > 2]
        assert sorted(float(np.nanmax(values)) for values in thin) == pytest.approx([2, 4])
        assert sorted(float(np.nanmax(values)) for values in thick) == pytest.approx([3, 9])
        assert not [band for band in ax.collections if np.isfinite(band.get_datalim(ax.transData).ymin)]
        assert words(ax)[-2:] == ["sequential (n=2)", "parallel (n=1)"]
        texts = [text.get_text() for text in figure.texts]
        assert texts[:2] == ["Training curves: PPO, coinrun", "3 runs · 2 groups · seeds 0 and 1"]

    def test_panels_have_their_values_on_either_axis(self, study: RunSet) -> None:
        figures = {"entropy": 2.5, "policy_loss": -0.01, "value_loss": 0.1}
        for mode in ("sequential", "parallel"):
            study.add(line(3, 6, 60_000, 600), mode=mode)
        for x, label in (("timesteps", "timesteps"), ("hours", "minutes of wall clock")):
            figure = drawn(study, x)
            assert panel(figure, "Episode return").get_xlabel() == label
            for name, value in figures.items():
                title = {"entropy": "Policy entropy"}.get(name, name.replace("_", " ").capitalize())
                ax = panel(figure, title)
                assert np.nanmean(ax.lines[0].get_ydata()) == pytest.approx(value)
                assert ax.get_xlabel() == label
            fps = panel(figure, "FPS")
            assert fps.get_xlabel() == "minutes of wall clock"
            assert np.nanmean(fps.lines[0].get_ydata()) == pytest.approx(100)

    @pytest.mark.parametrize("count", [2, 8, 12])
    def test_no_text_leaves_the_picture(self, study: RunSet, count: int) -> None:
        for epochs in range(1, count + 1):
            study.add(line(3, 6, 900, 60), settings={"training.n_epochs": epochs})
        figure = drawn(study)
        box = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height
        assert bool(figure.legends) == (count > 8)


class TestCommand:
    def test_runs_are_positions_and_folders_may_hold_several(
        self,
        study: RunSet,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        study.add_ends({"sequential": [2.0, 4.0], "parallel": [3.0]})
        monkeypatch.chdir(tmp_path)
        assert main(["study"]) == 0
        assert capsys.readouterr().out == "Training curves: training_curves.png\n"
        assert imread("training_curves.png").shape[1] == 2100
        rows = str(study.paths[0] / "logs/PPO_Sequential/metrics.jsonl")
        assert main(["study/run[02]", "--output", "glob.png"]) == 0
        assert "glob.png" in capsys.readouterr().out
        assert main([rows, "study/run2", "--output", "two", "--format", "pdf", "svg"]) == 0
        assert capsys.readouterr().out == "Training curves: two.pdf\nTraining curves: two.svg\n"
        assert "parallel" in Path("two.svg").read_text()

    def test_one_run_is_drawn_alone_in_its_folder(self, study: RunSet) -> None:
        run = study.add(line(3, 6, 900, 60))
        for words in ([str(run)], ["--log-file", str(run)], [str(study.root)]):
            assert main(words) == 0
            picture = run / "training_curves.png"
            assert imread(picture).shape[1] == 1800
            picture.unlink()

    def test_failed_runs_are_left_out_and_named_and_drawn_alone(
        self, study: RunSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        study.add(line(3, 6, 900, 60))
        study.add(line(3, 6, 900, 60), mode="parallel")
        failed = write_run(tmp_path / "failed", line(3, 6, 900, 60), status="failed")
        assert main([str(study.root), str(failed), "--output", str(tmp_path / "c.png")]) == 0
        assert capsys.readouterr().err == f"left out: {failed}: failed after 900 timesteps\n"
        assert main([str(failed)]) == 0 and (failed / "training_curves.png").exists()

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "no run is given"),
            (["nowhere"], "no file or folder matches nowhere"),
            (["nowhere", "{run}"], "no file or folder matches nowhere"),
            (["{run}", "{loose}"], "lies in no run"),
            (["{run}", "--output", "x.gif"], "must end in one of .png, .svg, .pdf"),
            (["{run}", "--format", "gif"], "invalid choice"),
        ],
    )
    def test_wrong_input_is_one_line(
        self,
        study: RunSet,
        tmp_path: Path,
        words: list[str],
        message: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        run, loose = study.add(line(3, 6, 900, 60)), tmp_path / "metrics.jsonl"
        loose.write_text('{"timesteps": 1}\n')
        assert main([word.format(run=run, loose=loose) for word in words]) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1
