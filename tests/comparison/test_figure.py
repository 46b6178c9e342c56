"""The picture: labels at the ends of lines, no overlaps, nothing cut off, and the notes below."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.curves import game_panels, score_panels
from rlcb.comparison.fairness import Difference
from rlcb.comparison.figure import MAX_CLAIMS, claims, draw_game, draw_games, unequal
from rlcb.comparison.findings import Finding
from rlcb.comparison.lost import LostRun
from rlcb.comparison.panel import spread
from rlcb.comparison.procgen_scores import NORMALISATION
from rlcb.comparison.statistics import Bootstrap
from tests.comparison_run_folders import RunSet, evaluation, line

FEW = Bootstrap(200, 1)


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path)


def drawn(comparison: Comparison) -> Figure:
    """The plot of the only game."""
    (game,) = comparison.games
    figure = draw_game(comparison, game, game_panels(game, FEW))
    figure.draw_without_rendering()
    return figure


def plain(text: Text) -> str:
    return " ".join(text.get_text().replace("\u00a0", " ").split())


def named(ax: Axes, name: str) -> Text:
    (found,) = [text for text in ax.texts if plain(text) == name]
    return found


def words(figure: Figure) -> str:
    return " ".join(plain(text) for text in figure.texts)


def leaders(ax: Axes) -> list[Any]:
    return [each for each in ax.lines if each.get_transform() is ax.transAxes]


class TestNames:
    @pytest.fixture
    def returns(self, study: RunSet) -> Axes:
        """Return over wall clock: the sequential runs end at a third of the axis."""
        for seed in (0, 1):
            study.add(line(2, 4, 1000, 100), seed=seed)
            study.add(line(2, 8 + seed, 3000, 300), mode="parallel", seed=seed)
        return drawn(study.compare()).axes[0]

    def test_line_that_ends_early_has_a_dot_there_and_its_name_beside_the_panel(self, returns: Axes) -> None:
        name = named(returns, "PPO sequential")
        assert name.get_transform() is returns.transAxes and name.get_position()[0] > 1
        (dot,) = [each for each in returns.lines if each.get_marker() == "o"]
        (x,), (y,) = dot.get_data()
        assert x == pytest.approx(100 / 60, abs=0.03) and y == pytest.approx(4, abs=0.2)
        assert dot.get_color() == name.get_color()

    def test_nothing_is_drawn_in_its_colour_after_its_end(self, returns: Axes) -> None:
        colour = named(returns, "PPO sequential").get_color()
        own = [each for each in returns.lines if each.get_color() == colour]
        assert [each for each in own if each.get_linewidth() == 0.7]  # one for each seed
        assert len(own) >= 2
        for each in own:
            x, y = (np.asarray(values, float) for values in each.get_data())
            assert x[np.isfinite(y)].max() <= 101.5 / 60

    def test_leader_lines_are_grey_and_outside_the_panel(self, returns: Axes) -> None:
        assert len(leaders(returns)) == 2
        for leader in leaders(returns):
            assert min(leader.get_xdata()) >= 1 and leader.get_color() == "#999999"
            name = named(returns, "PPO parallel")
            assert name.get_position()[0] > max(leader.get_xdata())

    def test_no_text_covers_a_line(self, returns: Axes) -> None:
        assert returns.texts
        for text in returns.texts:
            box = text.get_window_extent()
            assert box.x0 >= returns.bbox.x1 or box.y0 >= returns.bbox.y1, text

    def test_lost_seeds_stand_beside_the_name(self, study: RunSet) -> None:
        study.add(line(2, 4, 1000, 100), seed=0)
        study.add(line(2, 4, 500, 50), seed=1, status="interrupted")
        for seed in (0, 1):
            study.add(line(2, 8, 1000, 100), mode="parallel", seed=seed)
        lost = [
            LostRun(study.root / "x", "failed", "ppo", "parallel", "procgen-coinrun-v0", n) for n in (2, 3)
        ]
        figure = drawn(study.compare(lost=lost))
        first, *others = figure.axes
        assert named(first, "PPO sequential (1 of 2)") and named(first, "PPO parallel (2 of 4)")
        assert not [text for ax in others for text in ax.texts if "PPO" in text.get_text()]
        assert "Lost seeds bias this: PPO sequential has 1 of 2 and PPO parallel has 2 of 4." in words(figure)
        assert "thin lines: seeds" in words(figure)

    def test_n_of_each_group_if_they_differ(self, study: RunSet) -> None:
        study.add(line(2, 4, 1000, 100))
        for seed in (0, 1):
            study.add(line(2, 8, 1000, 100), mode="parallel", seed=seed)
        figure = drawn(study.compare())
        assert named(figure.axes[0], "PPO sequential (n=1)") and named(figure.axes[0], "PPO parallel (n=2)")
        assert "each ·" not in words(figure)


def many(study: RunSet, groups: int, seeds: int = 2) -> Comparison:
    """Groups with long names whose lines end at nearly the same place."""
    for group in range(groups):
        for seed in range(seeds):
            settings = {"training.n_epochs": group + 1, "env.num_envs": 64 * (group + 1)}
            study.add(line(2, 5 + group / 100, 3000, 100), seed=seed, settings=settings)
    return study.compare(reference=True)


class TestRoom:
    @pytest.mark.parametrize("groups", [2, 8, 12])
    def test_no_text_is_cut(self, study: RunSet, groups: int) -> None:
        figure = drawn(many(study, groups))
        legend = figure.legends[0].get_texts() if figure.legends else []
        assert bool(legend) == (groups > 8)
        for text in [*figure.texts, *legend, *(each for ax in figure.axes for each in ax.texts)]:
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1, text

    def test_no_name_covers_another(self, study: RunSet) -> None:
        figure = drawn(many(study, 8))
        boxes = [text.get_window_extent() for text in figure.axes[0].texts if "envs" in text.get_text()]
        assert len(boxes) == 8
        for one, other in combinations(boxes, 2):
            assert not one.overlaps(other)

    def test_panels_fill_most_of_the_width(self, study: RunSet) -> None:
        study.add_ends({"sequential": [1, 2], "parallel": [3, 4]})
        figure = drawn(study.compare())
        assert sum(ax.get_position().width for ax in figure.axes[:2]) > 0.7

    def test_moved_apart_by_hand(self) -> None:
        assert spread([0.5, 0.5], [0.2, 0.2]) == pytest.approx([0.4, 0.6])
        assert spread([0.1, 0.9], [0.2, 0.2]) == [0.1, 0.9]
        assert spread([0.0, 0.02], [0.2, 0.2]) == pytest.approx([0.1, 0.3])  # stay within the panel
        assert spread([1.0, 1.0, 1.0], [0.1, 0.3, 0.1]) == pytest.approx([0.55, 0.75, 0.95], abs=1e-3)


class TestLines:
    @pytest.mark.parametrize(("seeds", "bands"), [(1, 0), (2, 1), (5, 1)])
    def test_two_seeds_have_an_interval(self, study: RunSet, seeds: int, bands: int) -> None:
        study.add_ends({"sequential": [float(seed) for seed in range(seeds)]})
        figure = drawn(study.compare())
        assert len(figure.axes[0].collections) == bands
        assert ("band: 95 % bootstrap interval of the mean; thin lines: seeds." in words(figure)) == (
            bands > 0
        )

    def test_the_first_panel_is_return_over_wall_clock(self, study: RunSet) -> None:
        study.add_ends({"sequential": [1.0, 3.0]})
        titles = [ax.get_title(loc="left") for ax in drawn(study.compare()).axes]
        assert titles == [
            "Episode return over wall clock",
            "Episode return over timesteps",
            "FPS",
            "Return: unseen levels",
        ]

    def test_lines_are_the_smooth_means(self, study: RunSet) -> None:
        study.add_ends({"sequential": [1.0, 3.0]})
        comparison = study.compare()
        panels = game_panels(comparison.games[0], FEW)
        figure = draw_game(comparison, comparison.games[0], panels)
        (thick,) = [each for each in figure.axes[1].lines if each.get_linewidth() == 2.4]
        assert np.array_equal(thick.get_ydata(), panels[0].curves[0].smooth_band.mean, equal_nan=True)


class TestForest:
    def forest(self, comparison: Comparison) -> Axes:
        return drawn(comparison).axes[-1]

    def test_groups_seeds_means_and_intervals(self, study: RunSet) -> None:
        for mode, returns in (("sequential", (4.0, 6.0, 8.0)), ("parallel", (7.0, 9.0))):
            for seed, unseen in enumerate(returns):
                evaluation(study.add(line(5, 5, 1000, 100), mode=mode, seed=seed), 5, unseen)
        lost = [
            LostRun(study.root / "x", "failed", *group, "procgen-coinrun-v0", 9)
            for group in (("ppo", "parallel"), ("a3c", "parallel"))
        ]
        comparison = study.compare(lost=lost)
        ax = self.forest(comparison)
        names = [label.get_text().split("\n") for label in ax.get_yticklabels()]
        assert [name for name, _ in names] == ["PPO sequential", "PPO parallel", "A3C parallel"]
        assert names[0][1].startswith("6.00 [") and names[0][1].endswith("], n=3")
        assert names[1][1].endswith("n=2 of 3") and names[2][1] == "n/a, n=0 of 1"
        dots = {each.get_ydata()[0]: each.get_xdata()[0] for each in ax.lines if each.get_markersize() == 9}
        assert dots == {0: 6.0, 1: 8.0}
        rings = [sorted(each.get_xdata()) for each in ax.lines if each.get_markersize() == 4]
        assert rings == [[4.0, 6.0, 8.0], [7.0, 9.0], []]
        (_, bar) = [each.get_xdata() for each in ax.lines if each.get_linewidth() == 5]
        assert list(bar) == [7.0, 9.0]
        low, high = ax.get_xlim()
        assert (low, high) == pytest.approx((4 - 0.3, 9 + 0.3))

    def test_without_evaluations_it_says_how_to_get_them(self, study: RunSet) -> None:
        study.add_ends({"sequential": [1.0, 3.0]})
        (text,) = self.forest(study.compare()).texts[1:]
        assert "--evaluate-episodes" in text.get_text() and "evaluate_universal.py" in text.get_text()


class TestWords:
    def test_findings_that_do_not_fit_are_shortened_to_their_claim(self) -> None:
        short, long = Finding("speed", "A is faster", "Twice."), Finding("time", "B is best", "x " * 80)
        lost = long._replace(caution="Lost seeds bias this: B has 2 of 4.")
        shown = ["Speed: A is faster. Twice.", "Time: B is best.", "Time: B is best. Lost seeds bias this."]
        assert claims([short, long, lost], 100) == shown

    def test_omitted_findings_are_counted(self) -> None:
        said = [Finding(f"p{i}", "claim", "") for i in range(MAX_CLAIMS + 3)]
        shown = claims(said, 100)
        assert len(shown) == MAX_CLAIMS + 1 and shown[-1] == "... and 3 more in the report."

    def test_settings_are_named_and_the_others_counted(self) -> None:
        differences = [Difference("hyperparameters", f"{name}: 1 in A; 2 in B") for name in "abcdefg"]
        assert unequal(differences) == "hyperparameters (a, b, c, d, e and 2 more). Details in the report."

    def test_single_short_difference_is_shown_in_full(self) -> None:
        found = unequal([Difference("hardware", "threads in all: 4 in B; 2 in A")])
        assert found == "hardware (threads in all: 4 in B; 2 in A). Details in the report."

    def test_long_difference_ends_with_an_ellipsis(self) -> None:
        text = f"not every run was evaluated (missing: {', '.join(f'run{i}' for i in range(30))})"
        found = unequal([Difference("evaluation", text)])
        assert found.startswith("evaluation (not every run was evaluated") and " ...). Details" in found

    def test_aspects_without_room_are_only_named(self) -> None:
        differences = [Difference(f"aspect {i}", f"setting: {i} in A; 0 in B") for i in range(4)]
        found = unequal(differences, room=80)
        assert found.startswith("aspect 0 (setting: 0 in A; 0 in B); aspect 1 (")
        assert found.endswith("; aspect 2; aspect 3. Details in the report.")

    def test_nothing_unequal(self) -> None:
        assert unequal([]) == "nothing found."

    def test_the_plot_has_claims_and_what_was_unequal(self, study: RunSet) -> None:
        study.add(line(2, 4, 1000, 100))
        study.add(line(2, 8, 3000, 100), mode="parallel", settings={"env.num_envs": 128})
        text = words(drawn(study.compare()))
        assert "PPO parallel returned 8.00 in training on coinrun after 1.7 minutes, 4.00 more than" in text
        assert "Training at equal timesteps (1,000 timesteps): no clear winner; PPO sequential is" in text
        assert "Speed: no group is faster than PPO sequential." not in text
        assert "Speed: PPO parallel was fastest. 3.00× the timesteps per second of PPO sequential" in text
        assert "total environments (num_envs: 64 in PPO sequential; 128 in PPO parallel)" in text

    def test_scores_say_by_which_ranges(self, study: RunSet) -> None:
        for env in ("procgen-coinrun-v0", "procgen-maze-v0"):
            study.add_ends({"sequential": [6.0, 7.0], "parallel": [7.0, 8.0]}, env=env)
        comparison = study.compare()
        panels = {game.env: game_panels(game, FEW) for game in comparison.games}
        text = words(draw_games(comparison, {**panels, "": score_panels(comparison)}))
        assert f"ranges of {NORMALISATION}." in text and "Comparison on 2 games: coinrun, maze" in text
        (game, _) = comparison.games
        assert NORMALISATION not in words(draw_game(comparison, game, panels[game.env]))

    def test_the_reference_is_cited_with_what_differs(self, study: RunSet) -> None:
        study.add(line(2, 4, 300_000, 100))
        study.add(line(2, 8, 300_000, 100), "impala", mode="parallel", settings={"training.n_epochs": 1})
        text = words(drawn(study.compare(reference=True)))
        assert "arXiv:1912.01588" in text and "PPO, easy mode, 200 training levels, mean of 3 runs" in text
        # Both clip no value loss; IMPALA has another name and number of epochs too. Nothing else is recorded
        # that differs.
        assert "PPO sequential in 1 setting; IMPALA parallel in 3 settings" in text
        assert "arXiv" not in words(drawn(study.compare()))
