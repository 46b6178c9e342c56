"""The settings of a tuning and its folder: what is refused, what may change, what every run starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcb.errors import UsageError
from rlcb.tuning.folder import open_tuning, run_name
from rlcb.tuning.settings import build_tuning

GIVEN: dict[str, Any] = {"algorithms": ["ppo", "impala"], "trials": 4, "duration": 0.1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_timesteps": 1000}, "every run has one budget"),
        ({"algorithms": ["a3c"], "mode": "sequential"}, "a3c has no mode sequential: one sequential A3C"),
        ({"algorithms": ["ppo", "ppo"]}, "'ppo' is given twice"),
        ({"trials": 0}, "trials = 0"),
        ({"set": {"training.seed": 3}}, "--set training.seed: the tuning sets training.seed for each run"),
        ({"set": {"a2c:training.gamma": 0.9}}, "'a2c' is not among the algorithms"),
        ({"set": {"training.gama": 0.9}}, "training.gama = 0.9: unknown key"),
        ({"config": {"a2c": "x.yaml"}}, "--config a2c=x.yaml: expected ALGORITHM=FILE"),
        ({"envs": ["coinrum"]}, "--envs coinrum"),
        ({"envs": ["coinrun", "CartPole-v1"]}, "this one has none; tune for it alone"),
        ({"sampler": "grid"}, "sampler = 'grid'"),
        ({"speed": 3}, "speed = 3: unknown key"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        open_tuning(tmp_path / "t", {**GIVEN, **changes})
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "t").exists()


def test_without_a_budget_each_run_has_an_hour() -> None:
    assert build_tuning({"algorithms": ["ppo"]}, "t").duration == 1.0
    assert build_tuning({"algorithms": ["ppo"], "total_timesteps": 5000}, "t").budget == 5000


def test_a_setting_for_one_algorithm_overrides_one_for_all() -> None:
    fixed = {"ppo:training.gamma": 0.9, "training.gamma": 0.8, "impala:training.vf_coef": 1.0}
    tuning = build_tuning({**GIVEN, "num_envs": 16, "set": fixed}, "t")
    assert tuning.fixed("ppo") == {"env.num_envs": 16, "training.gamma": 0.9}
    assert tuning.fixed("impala") == {"env.num_envs": 16, "training.gamma": 0.8, "training.vf_coef": 1.0}


def test_an_existing_tuning_keeps_its_settings_and_only_gains_trials(tmp_path: Path) -> None:
    root = tmp_path / "t"
    open_tuning(root, GIVEN).write()
    assert open_tuning(root, {}).tuning == open_tuning(root, GIVEN).tuning
    assert open_tuning(root, {"trials": 6}).tuning.trials == 6
    for changes, message in (
        ({"trials": 3}, "trials = 4 there, 3 now"),
        ({"duration": 0.2}, "duration = 0.1 there, 0.2 now"),
        ({"total_timesteps": 500}, "total_timesteps = None there, 500 now"),
        ({"algorithms": ["ppo"]}, "algorithms = ['ppo', 'impala'] there"),
        ({"search_seed": 1}, "search_seed = 0 there, 1 now"),
    ):
        with pytest.raises(UsageError) as refused:
            open_tuning(root, changes)
        assert message in str(refused.value)


def test_all_runs_start_from_the_files_of_the_first_start(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("when: {ppo: {training: {vf_coef: 0.7}}}\n")
    given = {**GIVEN, "config": {"ppo": str(file)}, "set": {"model.hidden_size": 64}}
    open_tuning(tmp_path / "t", given).write()
    file.write_text("when: {ppo: {training: {vf_coef: 0.1}}}\n")
    config = open_tuning(tmp_path / "t", {}).base_config("ppo")
    assert config.training.vf_coef == 0.7
    assert config.model.hidden_size == 64
    assert config.training.duration_hours == 0.1
    assert config.logging.keep_checkpoints == 1


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(UsageError, match="is not empty and holds no tuning"):
        open_tuning(tmp_path, GIVEN)
    with pytest.raises(UsageError, match="give --algorithms"):
        open_tuning(tmp_path / "new", {})


def test_run_folders_have_plain_names() -> None:
    assert run_name("procgen-coinrun-v0", 3) == "coinrun_seed3"
    assert run_name("ALE/Pong-v5", 1) == "ALE-Pong-v5_seed1"
