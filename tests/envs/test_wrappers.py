"""env.wrappers: a user's own wrappers, and the advice for spaces that need one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlcb.cli.train import main
from rlcb.config.config import Config
from rlcb.config.settings import EnvConfig
from rlcb.config.yaml_file import build_config, dump_config, parse_yaml
from rlcb.envs.layout import observation_layout, require_discrete
from rlcb.envs.vector_env import make_vector_env, spaces_of
from rlcb.envs.wrappers import wrappers_of
from rlcb.errors import UsageError
from rlcb.evaluation.evaluation import evaluate
from rlcb.seeding import environment_seeds, group_seed
from rlcb.training.run_folder import require_same_run
from tests import runs

OWN = "tests.own_wrappers"
LIMIT = {"wrapper": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 5}
TRIPLE = {"wrapper": f"{OWN}:RewardTimes", "factor": 3}
CARTPOLE = (
    *("--env", "CartPole-v1", "--num-envs", 4, "--n-steps", 16, "--batch-size", 32, "--num-threads", 1),
    *("--set", "logging.tensorboard=false", "--total-timesteps", 128),
)


def config_with(wrappers: Any, env_id: str = "CartPole-v1") -> Config:
    return build_config({"env": {"id": env_id, "wrappers": wrappers, "num_envs": 32}}, "the test")


def make(wrappers: Any, env_id: str = "CartPole-v1", count: int = 2) -> Any:
    return make_vector_env(config_with(wrappers, env_id).env, [group_seed(0, 0)], count)


def first_observations(count: int = 2) -> Any:
    """CartPole's own first observations with the seeds of `make`."""
    seeds = environment_seeds(group_seed(0, 0), count)
    return np.array([gymnasium.make("CartPole-v1").reset(seed=seed)[0] for seed in seeds])


# --- The wrappers take effect ---


def test_wrappers_apply_in_order_the_first_one_innermost() -> None:
    plain = first_observations()
    env = make([f"{OWN}:Plus", f"{OWN}:Double"])
    np.testing.assert_allclose(env.reset()[0], 2 * (plain + 1), rtol=1e-6)
    env = make([f"{OWN}:Double", {"wrapper": f"{OWN}:Plus", "number": 4}])
    np.testing.assert_allclose(env.reset()[0], 2 * plain + 4, rtol=1e-6)


def test_a_wrapper_may_change_the_spaces_that_the_network_fits() -> None:
    env = make([{"wrapper": "gymnasium.wrappers:DiscretizeAction", "bins": 3}], "Pendulum-v1")
    assert spaces_of(env).num_actions == 3
    env = make([{"wrapper": "gymnasium.wrappers:FrameStackObservation", "stack_size": 3},
                "gymnasium.wrappers:FlattenObservation"])  # fmt: skip
    assert spaces_of(env).observation_shape == (12,)


def test_wrapped_environments_are_saved_and_restored() -> None:
    env, other = make([LIMIT, TRIPLE]), make([LIMIT, TRIPLE])
    env.reset()
    other.reset(seed=[8, 9])
    actions = np.random.default_rng(0).integers(0, 2, (30, 2))
    env.step(actions[0])
    other.set_state(env.get_state())
    for each in actions:
        for ours, theirs in zip(env.step(each)[:4], other.step(each)[:4]):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_a_run_trains_and_evaluates_with_its_wrappers(mode: str, tmp_path: Path) -> None:
    folder, setting = tmp_path / "run", f"env.wrappers={json.dumps([LIMIT, TRIPLE])}"
    flags = [str(flag) for flag in (*CARTPOLE, "--set", setting, "--output-dir", folder)]
    if mode == "sequential":
        assert main("ppo", mode, False, flags) == 0
    else:
        result = runs.call("train.py --algorithm ppo --mode parallel", *flags, "--num-workers", 2)
        assert result.returncode == 0, result.stderr
    assert runs.record(folder)["config"]["env"]["wrappers"] == [LIMIT, TRIPLE]
    assert {row["rollout/ep_length_mean"] for row in runs.rows(folder)} == {5}
    assert {row["rollout/ep_reward_mean"] for row in runs.rows(folder)} == {15}
    checkpoint = folder / "checkpoints" / f"ppo_{mode}_final.pt"
    played = evaluate(checkpoint, 4)["splits"]["full"]
    assert (played["lengths"], played["rewards"]) == ([5] * 4, [15] * 4)
    played = evaluate(checkpoint, 2, env_id="CartPole-v0")["splits"]["full"]
    assert played["rewards"] == [15] * 2, "another Gymnasium environment keeps the wrappers"


# --- The setting ---


def test_a_wrapper_without_arguments_has_one_form_and_yaml_restores_the_setting() -> None:
    config = config_with([{"wrapper": "a.b:C"}, "d:E", {"wrapper": "d:E", "x": [1]}])
    assert config.env.wrappers == ["a.b:C", "d:E", {"wrapper": "d:E", "x": [1]}]
    assert build_config(parse_yaml(dump_config(config), "the test"), "the test") == config


@pytest.mark.parametrize(
    "wrappers", [["Plus"], ["a:b:c"], [3], [{"number": 4}], [{"wrapper": "a:B", "x-y": 1}]]
)
def test_other_forms_are_refused_with_the_right_ones(wrappers: Any) -> None:
    with pytest.raises(UsageError, match=r"env\.wrappers.0.*module:Class or \{wrapper: module:Class"):
        config_with(wrappers)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("tests.nowhere:Plus", "No module named 'tests.nowhere'"),
        (f"{OWN}:Minus", "has no attribute 'Minus'"),
        (f"{OWN}:NoWrapper", "is not a subclass of gymnasium.Wrapper"),
        (f"{OWN}:function", "is not a subclass of gymnasium.Wrapper"),
        ("gymnasium.wrappers.vector:ClipReward", "wraps vector environments"),
        (f"{OWN}:RewardTimes", "missing 1 required positional argument: 'factor'"),
        ("gymnasium.wrappers:AtariPreprocessing", "cannot wrap"),
    ],
)  # fmt: skip
def test_what_cannot_wrap_is_refused_in_one_line_that_names_it(entry: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        make([LIMIT, entry])
    message = str(caught.value)
    assert message.startswith(f"env.wrappers.1 = {entry!r}: ") and reason in message and "\n" not in message


def test_a_worker_reports_a_wrapper_that_cannot_be_imported(tmp_path: Path) -> None:
    result = runs.call(
        "train.py --algorithm ppo --mode parallel", *CARTPOLE, "--num-workers", 2,
        "--set", 'env.wrappers=["nowhere:Plus"]', "--output-dir", tmp_path / "run",
    )  # fmt: skip
    assert result.returncode == 2
    assert "env.wrappers.0 = 'nowhere:Plus': cannot be imported (No module named 'nowhere')" in result.stderr
    assert "Traceback" not in result.stderr


def test_procgen_refuses_wrappers_in_one_line() -> None:
    with pytest.raises(UsageError, match="native batches") as caught:
        config_with(["gymnasium.wrappers:ClipReward"], "coinrun")
    assert "\n" not in str(caught.value)


def test_a_resumed_run_must_keep_its_wrappers() -> None:
    before, now = config_with([LIMIT]), config_with([LIMIT, f"{OWN}:Plus"])
    require_same_run(before, config_with([LIMIT]))
    with pytest.raises(UsageError, match=r"env\.wrappers"):
        require_same_run(before, now)


def test_the_installed_command_finds_modules_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from tests.own_wrappers import RewardTimes as Mine\n")
    script = "import sys; from rlcb.start import rlcb; rlcb()"
    flags = [*CARTPOLE, "--set", "env.wrappers=[{wrapper: mine:Mine, factor: 2}]", "--output-dir", "run"]
    words = [sys.executable, "-P", "-c", script, "train", "--algorithm", "ppo", "--mode", "sequential"]
    result = runs.run_words([*words, *map(str, flags)], tmp_path)
    assert result.returncode == 0, result.stderr


# --- Advice for spaces ---

VECTOR = spaces.Box(-1, 1, (3,), np.float32)


@pytest.mark.parametrize(
    ("space", "count"),
    [
        (spaces.Dict(a=VECTOR, b=spaces.Discrete(4)), 7),
        (spaces.Dict(a=VECTOR, words=spaces.Sequence(VECTOR)), 3),
        (spaces.Tuple([VECTOR, spaces.Discrete(2)]), 5),
        (spaces.Discrete(6), 6),
        (spaces.MultiDiscrete([2, 3]), 5),
        (spaces.Box(0, 1, (2, 3, 4, 5)), 120),
        (spaces.Box(0, 1, ()), 1),
    ],
)
def test_the_setting_that_the_message_names_makes_a_vector_of_an_observation(space: Any, count: int) -> None:
    class Odd(gymnasium.Env[Any, Any]):
        observation_space, action_space = space, spaces.Discrete(2)

    with pytest.raises(UsageError) as caught:
        observation_layout(space, "Odd-v0")
    message = str(caught.value)
    assert "\n" not in message and "'Odd-v0'" in message
    env = apply(Odd(), message)
    assert env.observation_space.shape == (count,)


def test_the_setting_that_the_message_names_makes_actions_discrete() -> None:
    class Odd(gymnasium.Env[Any, Any]):
        observation_space, action_space = VECTOR, spaces.Box(-1, 1, (2,))

    with pytest.raises(UsageError, match="25 Discrete actions") as caught:
        require_discrete(Odd.action_space, "Odd-v0")
    assert apply(Odd(), str(caught.value)).action_space == spaces.Discrete(25)


@pytest.mark.parametrize("space", [spaces.MultiBinary(3), spaces.Box(-np.inf, np.inf, (2,))])
def test_other_actions_need_a_wrapper_of_the_user(space: Any) -> None:
    with pytest.raises(UsageError, match=r"a wrapper of your own in env\.wrappers"):
        require_discrete(space, "Odd-v0")


def apply(env: Any, message: str) -> Any:
    """Wrap an environment as a user would who copies the setting out of a message."""
    setting = message.split("--set 'env.wrappers=")[1].split("'")[0]
    config = EnvConfig(id="CartPole-v1", wrappers=parse_yaml(setting, "the message"))
    for wrap in wrappers_of(config):
        env = wrap(env)
    return env
