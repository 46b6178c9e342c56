"""The score ranges and published results equal the publication."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcb.comparison.procgen_scores import RANGES, REFERENCE_SETTINGS, normalise, published, score_range
from rlcb.comparison.reference import references
from rlcb.config.config import flat_settings
from rlcb.config.games import GAMES
from rlcb.config.yaml_file import build_config
from tests.comparison_run_folders import RunSet, line

AS_PUBLISHED = {key: value for key, value in REFERENCE_SETTINGS.items() if key != "algorithm"}


def test_every_game_has_both_ranges() -> None:
    assert set(RANGES) == set(GAMES)
    for game in GAMES:
        for mode in ("easy", "hard"):
            limits = score_range(game, mode)
            assert limits is not None and limits[0] < limits[1]


@pytest.mark.parametrize(
    ("env", "mode", "limits"),
    [
        ("bigfish", "easy", (1, 40)),
        ("bossfight", "easy", (0.5, 13)),
        ("caveflyer", "easy", (3.5, 12)),
        ("chaser", "easy", (0.5, 13)),
        ("climber", "easy", (2, 12.6)),
        ("coinrun", "easy", (5, 10)),
        ("dodgeball", "easy", (1.5, 19)),
        ("fruitbot", "easy", (-1.5, 32.4)),
        ("heist", "easy", (3.5, 10)),
        ("jumper", "easy", (1, 10)),
        ("leaper", "easy", (1.5, 10)),
        ("maze", "easy", (5, 10)),
        ("miner", "easy", (1.5, 13)),
        ("ninja", "easy", (3.5, 10)),
        ("plunder", "easy", (4.5, 30)),
        ("starpilot", "easy", (2.5, 64)),
        ("bigfish", "hard", (0, 40)),
        ("bossfight", "hard", (0.5, 13)),
        ("caveflyer", "hard", (2, 13.4)),
        ("chaser", "hard", (0.5, 14.2)),
        ("climber", "hard", (1, 12.6)),
        ("coinrun", "hard", (5, 10)),
        ("dodgeball", "hard", (1.5, 19)),
        ("fruitbot", "hard", (-0.5, 27.2)),
        ("heist", "hard", (2, 10)),
        ("jumper", "hard", (1, 10)),
        ("leaper", "hard", (1.5, 10)),
        ("maze", "hard", (4, 10)),
        ("miner", "hard", (1.5, 20)),
        ("ninja", "hard", (2, 10)),
        ("plunder", "hard", (3, 30)),
        ("starpilot", "hard", (1.5, 35)),
        ("procgen-coinrun-v0", "easy", (5, 10)),
        ("coinrun", "memory", None),
        ("coinrun", None, None),
        ("CartPole-v1", "easy", None),
    ],
)
def test_ranges(env: str, mode: str | None, limits: tuple[float, float] | None) -> None:
    assert score_range(env, mode) == limits


def test_normalised_by_hand() -> None:
    assert normalise([5.0, 7.5, 10.0, 4.0], (5, 10)).tolist() == pytest.approx([0.0, 0.5, 1.0, -0.2])


def test_single_published_results() -> None:
    coinrun, starpilot, plunder = (published(game, "easy") for game in ("coinrun", "starpilot", "plunder"))
    assert coinrun is not None and starpilot is not None and plunder is not None
    assert coinrun.timesteps.tolist() == [1e5, 2.5e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2.5e7]
    assert (coinrun.train_mean[3], coinrun.train_std[3]) == (7.90, 0.31)
    assert (coinrun.test_mean[7], coinrun.test_std[7]) == (8.66, 0.15)
    assert (starpilot.train_mean[5], starpilot.train_std[5]) == (19.03, 3.75)
    assert (starpilot.test_mean[0], starpilot.test_std[0]) == (2.08, 0.27)
    assert (plunder.train_mean[7], plunder.test_std[7]) == (5.31, 0.63)


def test_published_results_are_complete() -> None:
    for game in GAMES:
        found = published(f"procgen-{game}-v0", "easy")
        assert found is not None
        for values in found:
            assert values.shape == (8,) and np.isfinite(values).all()
        assert (found.train_std >= 0).all() and (found.test_std >= 0).all()


def test_nothing_published_for_hard_mode_and_other_environments() -> None:
    assert published("coinrun", "hard") is None
    assert published("CartPole-v1", "easy") is None


def test_settings_of_the_published_runs_are_known_keys_and_as_published() -> None:
    known = flat_settings(build_config({"algorithm": "ppo", "mode": "sequential"}, "test"))
    assert set(REFERENCE_SETTINGS) - {"algorithm"} <= set(known)
    # openai/train-procgen, train_procgen/train.py, and the defaults of openai/baselines' ppo2 that it leaves.
    published_settings = {
        "model.impala_channels": [16, 32, 32],
        "model.hidden_size": 256,
        "training.learning_rate": 5e-4,
        "training.batch_size": 64 * 256 // 8,
        "training.max_grad_norm": 0.5,
        "training.vf_coef": 0.5,
        "training.optimizer": "adam",
        "training.lr_schedule": "constant",
        "training.normalize_rewards": True,
        "training.normalize_advantages": True,
        "env.procgen.use_backgrounds": True,
        "env.procgen.paint_vel_info": False,
    }
    assert {key: REFERENCE_SETTINGS[key] for key in published_settings} == published_settings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, ""),
        ({"model.hidden_size": 512}, "hidden_size 512 (published 256)"),
        ({"model.impala_channels": [32, 64, 64]}, "impala_channels [32, 64, 64] (published [16, 32, 32])"),
        ({"model.precision": "bfloat16"}, "precision bfloat16 (published float32)"),
        ({"training.lr_schedule": "linear"}, "lr_schedule linear (published constant)"),
        ({"training.batch_size": None}, "batch_size none (published 2,048)"),
        ({"env.procgen.use_backgrounds": False}, "use_backgrounds False (published True)"),
    ],
)
def test_settings_that_differ_from_the_published_runs_are_named(
    tmp_path: Path, settings: dict[str, Any], text: str
) -> None:
    runs = RunSet(tmp_path)
    runs.add(line(5, 6, 1000, 10), settings={**AS_PUBLISHED, **settings})
    (found,) = references(runs.compare(reference=True))
    assert found.differing == ([f"PPO sequential: {text}"] if text else [])


def test_setting_that_is_not_recorded_does_not_count_as_different(tmp_path: Path) -> None:
    runs = RunSet(tmp_path)
    path = runs.add(line(5, 6, 1000, 10))
    assert "precision" not in json.loads((path / "benchmark_metrics.json").read_text())["config"]["model"]
    (found,) = references(runs.compare(reference=True))
    assert "precision none" not in str(found.differing)
