"""The objective: returns in windows of the budget, their scale, and reading rows while a run writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.errors import UsageError
from rlcb.tuning.score import (
    BUDGET_PARTS,
    RowReader,
    joint_score,
    normalised,
    require_one_scale,
    window,
    window_of_part,
)


def row(timesteps: int, seconds: float, reward_per_step: float, episodes: int) -> dict[str, Any]:
    return {
        "timesteps": timesteps,
        "time/elapsed_seconds": seconds,
        "rollout/reward_per_step": reward_per_step,
        "rollout/episodes": episodes,
    }


def window_return(*arguments: Any, **options: Any) -> float | None:
    seen = window(*arguments, **options)
    return None if seen is None else seen.mean_return


def score_after(*arguments: Any) -> float | None:
    seen = window_of_part(*arguments)
    return None if seen is None else seen.mean_return


def config(env: str, mode: str = "easy") -> Config:
    return build_config({"env": {"id": env, "distribution_mode": mode}}, "test")


def rows_of_episodes(
    rng: np.random.Generator, num_envs: int, updates: int, n_steps: int
) -> tuple[list[dict[str, Any]], list[list[float]]]:
    """Rows of a run whose episodes have random lengths and rewards, and the rewards of each step by
    update."""
    rows, rewards, episodes = [], [], 0
    left = rng.integers(5, 40, num_envs)
    for update in range(1, updates + 1):
        total: list[float] = []
        for _ in range(n_steps):
            total += rng.integers(0, 3, num_envs).astype(float).tolist()
            left -= 1
            episodes += int((left == 0).sum())
            left = np.where(left == 0, rng.integers(5, 40, num_envs), left)
        rewards.append(total)
        rows.append(row(update * n_steps * num_envs, update * 2.0, float(np.mean(total)), episodes))
    return rows, rewards


def test_a_windows_return_is_its_reward_for_each_episode_that_ended() -> None:
    rows, rewards = rows_of_episodes(np.random.default_rng(1), num_envs=4, updates=40, n_steps=25)
    measured = window_return(rows, start=20.0, end=60.0, num_envs=4, timed=True)  # updates 11 to 30
    episodes = rows[29]["rollout/episodes"] - rows[9]["rollout/episodes"]
    assert episodes > 50
    assert measured == pytest.approx(sum(map(sum, rewards[10:30])) / episodes)
    assert measured == window_return(rows, start=1000, end=3000, num_envs=4, timed=False)


def test_a_policy_that_stands_still_scores_nothing_however_good_it_was() -> None:
    good = [row(1000 * part, part, 0.5, 100 * part) for part in range(1, 5)]
    still = [row(1000 * part, part, 0.0, 400) for part in range(5, 9)]
    assert window_return([*good, *still], 6.0, 8.0, 16, True) == 0.0
    assert window_return([*good, *still], 2.0, 4.0, 16, True) == pytest.approx(0.5 * 2000 / 200)


def test_environments_that_end_no_episode_count_one_each() -> None:
    rows = [row(800, 1, 1.0, 0), row(1600, 2, 1.0, 2)]
    seen = window(rows, 0.0, 2.0, num_envs=8, timed=True)
    assert seen is not None
    assert (seen.rewards, seen.episodes, seen.is_short) == (1600, 2, True)
    assert seen.mean_return == 1600 / 8
    enough = window(rows, 0.0, 2.0, num_envs=2, timed=True)
    assert enough is not None and not enough.is_short


def test_without_a_row_in_the_window_the_last_one_before_counts() -> None:
    rows = [row(100, 1, 1.0, 10), row(200, 2, 3.0, 20)]
    assert window_return(rows, 5.0, 6.0, 1, True) == 3.0 * 100 / 10
    assert window_return(rows[:1], 5.0, 6.0, 1, True) == 1.0 * 100 / 10
    assert window_return([], 0.0, 1.0, 1, True) is None
    assert window_return(rows, 0.0, 0.5, 1, True) is None


def test_a_score_covers_the_quarter_of_the_budget_before_it() -> None:
    rows = [row(100 * part, 10.0 * part, float(part), 10 * part) for part in range(1, 9)]
    assert score_after(rows, 4, 80.0, 1, True) == pytest.approx((3 + 4) * 100 / 20)
    assert score_after(rows, 1, 80.0, 1, True) == pytest.approx(100 / 10)
    late = [*rows[:-1], row(800, 81.5, 8.0, 80)]  # the last update ended after the budget
    assert score_after(late, BUDGET_PARTS, 80.0, 1, True) == pytest.approx((7 + 8) * 100 / 20)
    assert score_after(late, BUDGET_PARTS, 800, 1, False) == pytest.approx((7 + 8) * 100 / 20)


def test_returns_are_on_the_published_scale_of_the_game() -> None:
    assert normalised(33.25, config("starpilot")) == pytest.approx((33.25 - 2.5) / (64 - 2.5))
    assert normalised(5.0, config("coinrun", "hard")) == 0.0
    assert normalised(195.0, config("CartPole-v1")) == 195.0


def test_environments_without_a_common_scale_are_not_averaged() -> None:
    require_one_scale([config("CartPole-v1")])
    require_one_scale([config("starpilot"), config("coinrun")])
    with pytest.raises(UsageError, match=r"--envs CartPole-v1: several environments"):
        require_one_scale([config("starpilot"), config("CartPole-v1")])


def test_the_score_of_a_trial_is_the_mean_of_its_runs() -> None:
    assert joint_score([0.2, 0.6]) == pytest.approx(0.4)
    assert joint_score([0.2, 0.6], 0.1) == pytest.approx(0.3)
    assert joint_score([], 0.1) == 0.1


def test_rows_are_read_as_they_come_and_again_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "X" / "metrics.jsonl"
    reader = RowReader(tmp_path)
    assert reader.read() == []
    path.parent.mkdir(parents=True)
    path.write_text('{"update": 1}\n{"upd')
    assert reader.read() == [{"update": 1}]
    with path.open("a") as file:
        file.write('ate": 2}\n')
    assert reader.read() == [{"update": 1}, {"update": 2}]
    resumed = tmp_path / "new"
    resumed.write_text("".join(json.dumps({"update": n}) + "\n" for n in (1, 20, 30)))
    resumed.replace(path)  # as a resumed run does
    assert reader.read() == [{"update": 1}, {"update": 20}, {"update": 30}]
