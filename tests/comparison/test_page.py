"""Parts of the page: axes with round numbers and units, distinct swatches, numbers of seeds."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.curves import game_panels, score_panels
from rlcb.comparison.format import round_ticks
from rlcb.comparison.page import page, templates
from rlcb.comparison.reference import references
from rlcb.comparison.statistics import Bootstrap
from tests.comparison_run_folders import RunSet, line


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path)


def page_of(comparison: Comparison) -> str:
    panels = {game.env: game_panels(game, Bootstrap(200, 1)) for game in comparison.games}
    return page(comparison, {**panels, "": score_panels(comparison)})


class TestTicks:
    @pytest.mark.parametrize(
        ("low", "high", "ticks"),
        [
            (2.54, 3.31, [2.6, 2.8, 3.0, 3.2]),
            (2.21, 3.41, [2.5, 3.0]),
            (4.9, 10.1, [6, 8, 10]),
            (-1.3, 1.3, [-1, 0, 1]),
            (0.0, 50.0, [0, 10, 20, 30, 40, 50]),
            (1180.0, 1320.0, [1200, 1250, 1300]),
        ],
    )
    def test_by_hand(self, low: float, high: float, ticks: list[float]) -> None:
        assert round_ticks(low, high) == pytest.approx(ticks)

    def test_two_to_six_within_any_range(self) -> None:
        random = np.random.default_rng(1)
        for low, width in zip(random.uniform(-50, 50, 500), 10 ** random.uniform(-3, 3, 500)):
            ticks = round_ticks(low, low + width)
            assert 2 <= len(ticks) <= 6 and low - 1e-6 <= ticks[0] and ticks[-1] <= low + width + 1e-6


class TestForest:
    def test_axis_has_round_figures_and_a_unit(self, study: RunSet) -> None:
        study.add_ends({"sequential": [5.0, 6.0], "parallel": [7.0, 8.0]})
        text = page_of(study.compare())
        *axes, improvement = re.findall(r'<div class="row axis">(.*?)</div>', text, re.S)
        assert "P(X > Y)" in html.unescape(improvement)
        assert re.findall(r"%\">([^<]+)<", improvement) == ["0.0", "0.5", "1.0"]
        for axis in axes:
            ticks = re.findall(r'<span style="left:([\d.]+)%">([^<]+)</span>', axis)
            assert [tick for _, tick in ticks] == ["5", "6", "7", "8"] and "raw return" in axis
            # The axis goes from 5 to 8 and 6 % of that beyond either end.
            places = [100 * (value - 4.82) / 3.36 for value in (5, 6, 7, 8)]
            assert [float(place) for place, _ in ticks] == pytest.approx(places, abs=0.01)
            for place, _ in ticks:  # with a line in the row of each group
                assert text.count(f'<s style="left:{place}%">') == 4
        assert len(axes) == 2

    def test_seeds_without_a_value_are_counted(self, study: RunSet) -> None:
        study.add(line(5, 5, 1000, 100), seed=0)
        study.add(line(5, 5, 200, 20), seed=1, status="interrupted")
        study.add(line(6, 6, 1000, 100), mode="parallel")
        text = page_of(study.compare())
        assert text.count("5.00, n=1 of 2<") == 2 and text.count("6.00, n=1<") == 2


class TestSwatches:
    def test_repeated_colours_have_different_dashes(self) -> None:
        swatch = templates([]).get_template("parts.html").make_module().swatch
        assert len({swatch(index) for index in range(24)}) == 24
        assert 'class="swatch"' in swatch(1) and 'class="swatch d1"' in swatch(9)
        assert 'class="swatch d2"' in swatch(17) and all("var(--c1)" in swatch(i) for i in (1, 9, 17))

    def test_the_page_has_them_beyond_eight_groups(self, study: RunSet) -> None:
        for epochs in range(1, 11):
            study.add(line(1, 2, 1000, 100), settings={"training.n_epochs": epochs})
        text = page_of(study.compare())
        assert 'class="swatch d1" style="--c:var(--c0)"' in text and ".swatch.d1" in text


class TestLegends:
    def test_every_button_has_a_name_beside_its_colour(self, study: RunSet) -> None:
        study.add_ends({"sequential": [5.0, 6.0], "parallel": [7.0, 8.0]})
        text = page_of(study.compare())
        assert text.count("<span>Show or hide</span>") == 3  # curves, further curves, profiles
        for label in ("PPO sequential", "PPO parallel"):
            assert text.count(f"</span><span>{label}</span></button>") == 3
        assert "mean of n=2 seeds, noisy metrics smoothed over 5% of the axis" in text
        assert '"seeds":2' in text

    def test_common_n_is_omitted_if_groups_differ(self, study: RunSet) -> None:
        study.add_ends({"sequential": [5.0, 6.0], "parallel": [7.0]})
        text = page_of(study.compare())
        assert "Line: mean over seeds," in text and '"seeds":null' in text


def test_differing_and_unknown_settings_of_the_reference_are_shown(study: RunSet) -> None:
    settings = {"model.impala_channels": [32, 64, 64], "training.optimizer": "rmsprop"}
    study.add(line(5, 6, 300_000, 100), settings=settings)
    (found,) = references(study.compare(reference=True))
    (text,) = found.differing
    known, unknown = text.split("not recorded: ")
    assert known.startswith("PPO sequential: ")
    assert "impala_channels [32, 64, 64] (published [16, 32, 32])" in known
    assert "optimizer rmsprop (published adam)" in known and "hidden_size" not in text
    assert "paint_vel_info" in unknown.split(", ") and "optimizer" not in unknown.split(", ")
