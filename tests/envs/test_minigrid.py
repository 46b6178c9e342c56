"""MiniGrid: its view as a vector of categories, and runs on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlcb.config.env_packages import MINIGRID
from rlcb.config.settings import EnvConfig, ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.envs.vector_env import make_vector_env, spaces_of
from rlcb.errors import UsageError
from rlcb.evaluation.evaluation import evaluate
from rlcb.rl.models import MLP, make_model
from rlcb.seeding import environment_seeds, group_seed
from tests import extras, runs

extras.require(MINIGRID)
EMPTY, DOOR = "MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-6x6-v0"


def make(env_id: str = EMPTY, **settings: Any) -> Any:
    config = EnvConfig.model_validate({"id": env_id, "num_envs": 1, **settings})
    return make_vector_env(config, [group_seed(0, 0)], 1)


@pytest.mark.parametrize("env_id", [EMPTY, DOOR])
def test_the_vector_equals_minigrids_own_categories(env_id: str) -> None:
    from minigrid.wrappers import ImgObsWrapper, OneHotPartialObsWrapper

    env, single = make(env_id), ImgObsWrapper(OneHotPartialObsWrapper(gymnasium.make(env_id)))
    assert spaces_of(env) == Spaces((980,), "uint8", 7)
    expected, _ = single.reset(seed=environment_seeds(group_seed(0, 0), 1)[0])
    np.testing.assert_array_equal(env.reset()[0][0], 255 * expected.reshape(-1))
    for action in np.random.default_rng(0).integers(0, 7, 300).tolist():
        observations, rewards, terminated, truncated, _ = env.step(np.array([action]))
        expected, reward, ended, cut, _ = single.step(action)
        assert (rewards[0], terminated[0], truncated[0]) == (reward, ended, cut)
        if ended or cut:
            expected, _ = single.reset()
        np.testing.assert_array_equal(observations[0], 255 * expected.reshape(-1))


def test_the_network_is_the_mlp() -> None:
    assert isinstance(make_model(ModelConfig(), spaces_of(make()), 0).body, MLP)


def test_without_preprocessing_the_message_names_the_wrapper_of_the_image() -> None:
    with pytest.raises(UsageError, match=r"minigrid\.wrappers:ImgObsWrapper") as caught:
        make(preprocessing=False)
    assert "\n" not in str(caught.value)
    env = make(preprocessing=False, wrappers=["minigrid.wrappers:ImgObsWrapper"])
    assert spaces_of(env) == Spaces((7, 7, 3), "uint8", 7)
    with pytest.raises(UsageError, match=r"minigrid\.wrappers:ImgObsWrapper.*without the mission"):
        make("BabyAI-GoToRedBall-v0")


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(UsageError, match=r'needs the extra minigrid: pip install "\.\[minigrid\]"'):
        make()


@pytest.mark.timeout(120)
def test_a_parallel_run_trains_resumes_and_is_evaluated_in_a_larger_room(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ("--env", EMPTY, "--num-envs", 4, "--n-steps", 16, "--batch-size", 32, "--num-workers", 2)
    script = "train.py --algorithm ppo --mode parallel"
    for more in ((*flags, "--total-timesteps", 64), ("--resume", "--total-timesteps", 128)):
        result = runs.call(script, *more, "--output-dir", folder)
        assert result.returncode == 0, result.stderr
    assert "MiniGrid-Empty-5x5-v0 cannot be saved: the run continues with new episodes" in result.stderr
    checkpoint = folder / "checkpoints" / "ppo_parallel_final.pt"
    played = evaluate(checkpoint, 2, env_id="MiniGrid-Empty-8x8-v0", max_episode_steps=30)
    assert len(played["splits"]["full"]["lengths"]) == 2
