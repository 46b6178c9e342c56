"""The published ranges and figures are those that were published."""

from __future__ import annotations

import numpy as np
import pytest

from src.procgen_games import GAMES
from src.procgen_scores import RANGES, normalise, published, score_range


def test_every_game_has_both_ranges() -> None:
    assert set(RANGES) == set(GAMES)
    for game in GAMES:
        for mode in ("easy", "hard"):
            limits = score_range(game, mode)
            assert limits is not None and limits[0] < limits[1]


@pytest.mark.parametrize(
    ("env", "mode", "limits"),
    [
        ("procgen-coinrun-v0", "easy", (5, 10)),
        ("starpilot", "easy", (2.5, 64)),
        ("starpilot", "hard", (1.5, 35)),
        ("fruitbot", "easy", (-1.5, 32.4)),
        ("fruitbot", "hard", (-0.5, 27.2)),
        ("bigfish", "hard", (0, 40)),
        ("jumper", "easy", (1, 10)),
        ("leaper", "easy", (1.5, 10)),
        ("chaser", "hard", (0.5, 14.2)),
        ("coinrun", "memory", None),
        ("coinrun", None, None),
        ("CartPole-v1", "easy", None),
    ],
)
def test_ranges(env: str, mode: str | None, limits: tuple[float, float] | None) -> None:
    assert score_range(env, mode) == limits


def test_normalised_by_hand() -> None:
    assert normalise([5.0, 7.5, 10.0, 4.0], (5, 10)).tolist() == pytest.approx([0.0, 0.5, 1.0, -0.2])


def test_published_figures_of_single_cells() -> None:
    coinrun, starpilot, plunder = (published(game, "easy") for game in ("coinrun", "starpilot", "plunder"))
    assert coinrun is not None and starpilot is not None and plunder is not None
    assert coinrun.timesteps.tolist() == [1e5, 2.5e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2.5e7]
    assert (coinrun.train_mean[3], coinrun.train_std[3]) == (7.90, 0.31)
    assert (coinrun.test_mean[7], coinrun.test_std[7]) == (8.66, 0.15)
    assert (starpilot.train_mean[5], starpilot.train_std[5]) == (19.03, 3.75)
    assert (starpilot.test_mean[0], starpilot.test_std[0]) == (2.08, 0.27)
    assert (plunder.train_mean[7], plunder.test_std[7]) == (5.31, 0.63)


def test_published_figures_are_whole() -> None:
    for game in GAMES:
        found = published(f"procgen-{game}-v0", "easy")
        assert found is not None
        for values in found:
            assert values.shape == (8,) and np.isfinite(values).all()
        assert (found.train_std >= 0).all() and (found.test_std >= 0).all()


def test_nothing_published_for_hard_mode_and_other_environments() -> None:
    assert published("coinrun", "hard") is None
    assert published("CartPole-v1", "easy") is None
