"""Atari through Gymnasium's preprocessing: observations, saved states, whole runs, evaluation and video."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v2 as iio
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rlcb.cli import evaluate as evaluate_command
from rlcb.cli.train import main
from rlcb.config.env_packages import ATARI, load_package
from rlcb.config.settings import EnvConfig, ModelConfig
from rlcb.config.yaml_file import build_config
from rlcb.envs.spaces import Spaces
from rlcb.envs.vector_env import make_vector_env, spaces_of
from rlcb.errors import UsageError
from rlcb.kernels.build import KernelsUnavailable, compiled_and_checked
from rlcb.rl.models import make_model
from rlcb.seeding import environment_seeds, group_seed
from tests import extras, runs

extras.require(ATARI)
PONG, BREAKOUT = "ALE/Pong-v5", "ALE/Breakout-v5"
SMALL = (
    *("--env", PONG, "--num-envs", 2, "--n-steps", 8, "--num-threads", 1),
    *("--set", "model.architecture=nature", "--set", "model.hidden_size=16"),
    *("--set", "logging.tensorboard=false"),
)
PPO = (*SMALL, "--batch-size", 16, "--n-epochs", 1)


def make(count: int = 2, first_group: int = 0, render: bool = False, **settings: Any) -> Any:
    config = EnvConfig.model_validate({"id": PONG, "num_envs": count, **settings})
    return make_vector_env(config, [group_seed(0, first_group + i) for i in range(count)], 1, render=render)


def train(*flags: object, algorithm: str = "ppo") -> int:
    return main(algorithm, "sequential", False, [str(flag) for flag in flags])


# --- Observations ---


def test_observations_are_four_grey_frames_as_channels_of_an_image() -> None:
    env = make()
    observations = env.reset()[0]
    assert observations.shape == (2, 84, 84, 4)
    assert observations.dtype == np.uint8 and observations.flags.c_contiguous
    assert spaces_of(env) == Spaces((84, 84, 4), "uint8", 6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"frame_skip": 2, "frame_stack": 3, "screen_size": 42, "noop_max": 5, "terminal_on_life_loss": True},
    ],
)
def test_the_preprocessing_equals_gymnasiums_wrappers_put_together_by_hand(options: dict[str, Any]) -> None:
    env = make(1, id=BREAKOUT, atari=options)
    plain = gymnasium.make(BREAKOUT, frameskip=1)  # colours, sticky actions of 0.25
    arguments = {"frame_skip": 4, "noop_max": 30, **options}
    stack = arguments.pop("frame_stack", 4)
    single = FrameStackObservation(AtariPreprocessing(plain, **arguments), stack)
    emulator: Any = plain.unwrapped
    assert emulator.ale.getFloat("repeat_action_probability") == pytest.approx(0.25)
    expected, _ = single.reset(seed=environment_seeds(group_seed(0, 0), 1)[0])
    np.testing.assert_array_equal(env.reset()[0][0], np.moveaxis(expected, 0, -1))
    ends = 0
    for action in np.random.default_rng(0).integers(0, 4, 400).tolist():
        observations, rewards, terminated, truncated, _ = env.step(np.array([action]))
        expected, reward, ended, cut, _ = single.step(action)
        assert (rewards[0], terminated[0], truncated[0]) == (reward, ended, cut)
        if ended or cut:
            ends += 1
            expected, _ = single.reset()
        np.testing.assert_array_equal(observations[0], np.moveaxis(expected, 0, -1))
    assert ends >= 1


def test_arguments_of_the_environment_pass_through() -> None:
    config = {"kwargs": {"repeat_action_probability": 0.0, "full_action_space": True}}
    env = make(1, **config)
    assert spaces_of(env).num_actions == 18
    emulator = env._envs.envs[0].unwrapped.ale
    assert emulator.getFloat("repeat_action_probability") == 0


def test_wrappers_of_the_user_see_the_stacked_frames() -> None:
    reshape = "gymnasium.wrappers:ReshapeObservation"  # refuses lists instead of tuples
    wrappers = [{"wrapper": reshape, "shape": shape} for shape in ([2, 2, 84, 84], [4, 84, 84])]
    env = make(1, wrappers=wrappers)
    np.testing.assert_array_equal(env.reset()[0], make(1).reset()[0])


def test_without_preprocessing_the_screen_is_an_image_in_colours() -> None:
    env = make(1, preprocessing=False)
    assert spaces_of(env) == Spaces((210, 160, 3), "uint8", 6)
    env.reset()
    assert env.get_state() is None, "the emulator of an environment without our wrapper is not saved"


# --- Settings ---


def test_the_preprocessing_is_filled_in_for_atari_only() -> None:
    expected = {
        "frame_skip": 4,
        "frame_stack": 4,
        "screen_size": 84,
        "noop_max": 30,
        "terminal_on_life_loss": False,
    }
    for env_id in (PONG, f"ale_py:{PONG}"):
        atari = EnvConfig(id=env_id).atari
        assert atari is not None and atari.model_dump() == expected
    assert EnvConfig(id="CartPole-v1").atari is None
    assert EnvConfig(id=PONG, preprocessing=False).atari is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"id": "coinrun", "atari": {}}, "env.atari is for Atari games"),
        ({"id": PONG, "preprocessing": False, "atari": {}}, "env.preprocessing is false"),
        ({"id": PONG, "kwargs": {"frameskip": 4}}, "env.kwargs.frameskip = 4: .* set env.atari.frame_skip"),
        ({"id": PONG, "kwargs": {"obs_type": "ram"}}, "env.kwargs.obs_type = 'ram'"),
    ],
)
def test_settings_that_contradict_the_preprocessing_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        build_config({"env": settings}, "the test")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("module", ["ale_py", "cv2"])
def test_without_the_extra_the_message_names_it(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for call in (lambda: make(1), lambda: load_package(PONG)):
        with pytest.raises(UsageError, match=r'ALE/Pong-v5 needs the extra atari: pip install "\.\[atari\]"'):
            call()


def test_an_unknown_game_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="ALE/Pang-v5") as caught:
        make(1, id="ALE/Pang-v5")
    assert "\n" not in str(caught.value)


# --- Networks ---


@pytest.mark.parametrize("architecture", ["nature", "impala"])
def test_native_kernels_compute_atari_as_torch_does(architecture: str) -> None:
    try:
        compiled_and_checked()
    except KernelsUnavailable as error:
        pytest.skip(str(error))
    torch = importlib.import_module("torch")
    config, spaces = ModelConfig(architecture=architecture), Spaces((84, 84, 4), "uint8", 6)
    observations = torch.from_numpy(make(3).reset()[0])
    results = []
    for kernels in ("native", "torch"):
        model = make_model(config, spaces, 0, kernels)
        assert model.kernels == kernels
        logits, values = model(observations)
        (values.sum() + logits[:, 0].sum()).backward()
        results.append([logits, values, *(parameter.grad for parameter in model.parameters())])
    for ours, theirs in zip(*results):
        assert (ours - theirs).norm() <= 1e-3 * theirs.norm() + 1e-6


# --- Saved states ---


def test_a_restored_game_continues_exactly_with_its_sticky_actions() -> None:
    env, other = make(3, id=BREAKOUT), make(3, first_group=7, id=BREAKOUT)
    env.reset()
    other.reset()
    rng = np.random.default_rng(0)
    for each in rng.integers(0, 4, (150, 3)):
        env.step(each)
    for each in rng.integers(0, 4, (10, 3)):
        other.step(each)
    states = env.get_state()
    assert json.loads(states[0]), "a state is JSON"
    other.set_state(states)
    ends = 0
    for each in rng.integers(0, 4, (250, 3)):
        (*ours, _), (*theirs, _) = env.step(each), other.step(each)
        for a, b in zip(ours, theirs):
            np.testing.assert_array_equal(a, b)
        ends += ours[2].sum()
    assert ends >= 1


# --- Whole runs ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pong") / "run"
    assert train(*PPO, "--total-timesteps", 64, "--output-dir", folder) == 0
    return folder


@pytest.mark.parametrize("algorithm", ["a2c", "impala"])
def test_the_other_algorithms_train(algorithm: str, tmp_path: Path) -> None:
    assert train(*SMALL, "--total-timesteps", 32, "--output-dir", tmp_path / "r", algorithm=algorithm) == 0
    assert len(runs.rows(tmp_path / "r")) == 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "combination",
    [
        "ppo parallel --num-workers 2 --batch-size 16 --n-epochs 1",
        "a3c parallel --num-workers 2",
        "impala parallel --num-actors 1 --set impala.num_learners=1",
    ],
)
def test_several_processes_train(combination: str, tmp_path: Path) -> None:
    algorithm, mode, *flags = combination.split()
    script = f"train.py --algorithm {algorithm} --mode {mode}"
    result = runs.call(script, *SMALL, *flags, "--total-timesteps", 64, "--output-dir", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert runs.record(tmp_path / "run")["total_timesteps"] >= 64
    assert "Arcade Learning Environment" not in result.stderr, "the emulator greets nobody"


def test_a_resumed_run_equals_one_that_never_stopped(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert train(*PPO, "--total-timesteps", 32, "--output-dir", folder) == 0
    assert train("--resume", "--total-timesteps", 64, "--output-dir", folder) == 0
    ours, theirs = runs.parameters(folder), runs.parameters(trained)
    assert bool((ours == theirs).all())


def test_a_run_is_evaluated_and_recorded(trained: Path, tmp_path: Path) -> None:
    film, result = tmp_path / "film.mp4", tmp_path / "result.json"
    flags = ("--num-episodes", 2, "--max-episode-steps", 20, "--video", film, "--video-episodes", 1)
    checkpoint = trained / "checkpoints" / "ppo_sequential_final.pt"
    words = ("--checkpoint", checkpoint, *flags, "--output", result)
    assert evaluate_command.main([str(word) for word in words]) == 0
    played = json.loads(result.read_text())
    assert played["env"] == PONG and played["observation_shape"] == [4, 84, 84]
    assert played["splits"]["full"]["lengths"] == [20, 20]
    frames = np.array(iio.mimread(film, memtest=False))
    assert frames.shape == (20, 210, 160, 3), "the game's own screen, one frame for each step"
    assert np.ptp(frames[-1], axis=(0, 1)).max() > 50
