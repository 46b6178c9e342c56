"""The Gymnasium vector environment: observation layouts, old Gym, seeds, ends of episodes, states."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlcb.config.games import GAMES
from rlcb.config.settings import EnvConfig
from rlcb.envs import state
from rlcb.envs.layout import observation_layout
from rlcb.envs.procgen import ProcgenVectorEnv
from rlcb.envs.spaces import Spaces
from rlcb.envs.vector_env import GymnasiumVectorEnv, make_vector_env, spaces_of
from rlcb.errors import UsageError
from rlcb.seeding import environment_seeds, group_seed

SHAPES = {"HWC": (6, 5, 3), "CHW": (3, 6, 5), "HW": (6, 5)}
LAYOUTS = (
    *(((84, 84, channels), "HWC") for channels in (1, 3, 4, 6, 12)),
    *(((channels, 84, 84), "CHW") for channels in (1, 3, 4, 6, 12)),
    ((7, 7, 3), "HWC"),
    ((5, 5, 5), "HWC"),
)


class Counting(gymnasium.Env[Any, Any]):
    """An environment without chance: pixel (h, w, c) is number + h + 10 w + 50 c, the reward the action.

    An episode terminates after 3 steps if the last action was the highest one, and is truncated after 4.
    """

    def __init__(
        self, layout: str = "HWC", dtype: str = "uint8", start: int = 0, render_mode: str | None = None
    ) -> None:
        self.layout = layout
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"]}
        high = 255 if dtype == "uint8" else np.inf
        self.observation_space = spaces.Box(0, high, SHAPES[layout], np.dtype(dtype).type)
        self.action_space = spaces.Discrete(3, start=start)
        self.number = 0

    def observation(self) -> Any:
        h, w, c = np.meshgrid(np.arange(6), np.arange(5), np.arange(3), indexing="ij")
        image = self.number + h + 10 * w + 50 * c
        if self.layout == "HW":
            image = image[:, :, 0]
        elif self.layout == "CHW":
            image = image.transpose(2, 0, 1)
        return image.astype(self.observation_space.dtype)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number = 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.number += 1
        highest = action == self.action_space.start + 2  # type: ignore[attr-defined]
        return self.observation(), float(action), bool(self.number == 3 and highest), self.number == 4, {}

    def render(self) -> Any:
        return np.full((16, 16, 3), self.number, np.uint8)


class Engine(Counting):
    """The same, with a world outside of Python's sight."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.world = object()


class OddSpaces(gymnasium.Env[Any, Any]):
    """An environment with the spaces that it is told to have."""

    ALL: ClassVar[dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]]] = {
        "continuous actions": (spaces.Box(0, 1, (3,)), spaces.Box(-1, 1, (2,))),
        "several actions": (spaces.Box(0, 1, (3,)), spaces.MultiDiscrete([2, 3])),
        "binary actions": (spaces.Box(0, 1, (3,)), spaces.MultiBinary(4)),
        "numbered observations": (spaces.Discrete(5), spaces.Discrete(2)),
        "named observations": (spaces.Dict({"a": spaces.Box(0, 1, (2,))}), spaces.Discrete(2)),
        "paired observations": (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]), spaces.Discrete(2)),
        "words": (spaces.Text(5), spaces.Discrete(2)),
        "four axes": (spaces.Box(0, 1, (2, 3, 4, 5)), spaces.Discrete(2)),
        "no axis": (spaces.Box(0, 1, ()), spaces.Discrete(2)),
    }

    def __init__(self, kind: str) -> None:
        self.observation_space, self.action_space = self.ALL[kind]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}


class Broken(gymnasium.Env[Any, Any]):
    """An environment that cannot be built."""

    def __init__(self) -> None:
        raise RuntimeError("no licence\nand a second line")


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """The environments above under ids of their own."""
    ids: dict[str, Any] = {
        "Counting-v0": Counting,
        "Engine-v0": Engine,
        "OddSpaces-v0": OddSpaces,
        "Broken-v0": Broken,
    }
    for env_id, env_class in ids.items():
        gymnasium.register(env_id, env_class)
    yield
    for env_id in ids:
        del gymnasium.registry[env_id]


class Maker:
    """Makes environments and closes them when the test is over."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def __call__(
        self,
        env_id: str,
        groups: int = 1,
        group_size: int = 2,
        seed: int = 0,
        first_group: int = 0,
        render: bool = False,
        max_episode_steps: int | None = None,
        **kwargs: Any,
    ) -> ProcgenVectorEnv | GymnasiumVectorEnv:
        config = EnvConfig.model_validate({"id": env_id, "num_envs": groups * group_size, "kwargs": kwargs})
        seeds = [group_seed(seed, first_group + index) for index in range(groups)]
        env = make_vector_env(config, seeds, group_size, render=render, max_episode_steps=max_episode_steps)
        self.stack.callback(env.close)
        return env


@pytest.fixture
def make() -> Iterator[Maker]:
    with ExitStack() as stack:
        yield Maker(stack)


def constant(env: Any, action: int) -> Any:
    return np.full(env.num_envs, action, np.int64)


# --- Vectors ---


def test_cartpole_is_a_vector_environment_of_float32_vectors(make: Maker) -> None:
    env = make("CartPole-v1", groups=2, group_size=3)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    observations, _ = env.reset()
    assert observations.shape == (6, 4) and observations.dtype == np.float32
    assert spaces_of(env) == Spaces((4,), "float32", 2)
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert env.observation_space.contains(observations)
    _, rewards, terminated, truncated, _ = env.step(constant(env, 1))
    np.testing.assert_array_equal(rewards, np.ones(6))
    assert terminated.dtype == truncated.dtype == np.bool_


def test_cartpole_equals_gymnasiums_own_with_the_same_seeds(make: Maker) -> None:
    env = make("CartPole-v1", groups=2, group_size=2, seed=5)
    seeds = [seed for group in range(2) for seed in environment_seeds(group_seed(5, group), 2)]
    singles = [gymnasium.make("CartPole-v1") for _ in seeds]
    expected = np.stack([single.reset(seed=seed)[0] for single, seed in zip(singles, seeds, strict=True)])
    observations, _ = env.reset()
    np.testing.assert_array_equal(observations, expected)
    for actions in np.random.default_rng(0).integers(0, 2, (60, 4)):
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for i, single in enumerate(singles):
            observation, reward, ended, cut, _ = single.step(int(actions[i]))
            assert (rewards[i], terminated[i], truncated[i]) == (reward, ended, cut)
            if ended or cut:
                np.testing.assert_array_equal(infos["final_obs"][i], observation)
                observation, _ = single.reset()
            np.testing.assert_array_equal(observations[i], observation)


def test_truncation_gives_the_final_observation_and_the_first_of_the_next_episode(make: Maker) -> None:
    env = make("CartPole-v1", max_episode_steps=5)
    before, _ = env.reset()
    for step in range(1, 6):
        observations, _, terminated, truncated, infos = env.step(constant(env, step % 2))
        assert not terminated.any()
        assert truncated.all() == (step == 5)
    for i in range(2):
        final = infos["final_obs"][i]
        assert final.dtype == np.float32 and final.shape == (4,)
        assert not np.array_equal(final, observations[i])
        assert abs(final - before[i]).max() > 0.05  # it had moved
        assert abs(observations[i]).max() <= 0.05  # CartPole begins near zero


def test_seeds_belong_to_groups_and_a_second_reset_continues_the_random_streams(make: Maker) -> None:
    whole, _ = make("CartPole-v1", groups=3, group_size=2).reset()
    part_env = make("CartPole-v1", groups=2, group_size=2, first_group=1)
    part, _ = part_env.reset()
    np.testing.assert_array_equal(whole[2:], part)
    seeds = [group_seed(0, group) for group in range(3)]
    across = make_vector_env(EnvConfig(id="CartPole-v1", num_envs=6), seeds, 2, envs=range(1, 4))
    np.testing.assert_array_equal(whole[1:4], across.reset()[0])
    across.close()
    assert len({tuple(each) for each in whole}) == 6
    assert not np.array_equal(part_env.reset()[0], part)
    np.testing.assert_array_equal(part_env.reset(seed=[1, 2, 3, 4])[0], part_env.reset(seed=[1, 2, 3, 4])[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_gym_environments_come_through_shimmy(make: Maker) -> None:
    env = make("gym:CartPole-v1", max_episode_steps=4)
    observations, _ = env.reset()
    assert observations.shape == (2, 4) and observations.dtype == np.float32
    assert spaces_of(env) == Spaces((4,), "float32", 2)
    for step in range(1, 5):
        observations, rewards, _, truncated, infos = env.step(constant(env, 1))
        np.testing.assert_array_equal(rewards, np.ones(2))
        assert truncated.all() == (step == 4)
    assert abs(infos["final_obs"][0]).max() > 0.05 >= abs(observations).max()
    assert env.get_state() is None  # an old environment inside a bridge is nothing that is known how to save


def test_arguments_reach_the_environment(make: Maker) -> None:
    env = make("CartPole-v1", sutton_barto_reward=True)
    env.reset()
    assert (env.step(constant(env, 0))[1] == 0).all()


# --- Images ---


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("layout", SHAPES)
def test_images_of_each_layout_are_returned_as_height_width_channels(
    layout: str, dtype: str, make: Maker
) -> None:
    env = make("Counting-v0", layout=layout, dtype=dtype)
    channels = 1 if layout == "HW" else 3
    ours = "uint8" if dtype == "uint8" else "float32"
    assert spaces_of(env) == Spaces((6, 5, channels), ours, 3)
    h, w, c = np.meshgrid(np.arange(6), np.arange(5), np.arange(channels), indexing="ij")
    zero = h + 10 * w + 50 * c
    observations, _ = env.reset()
    assert observations.dtype == ours and observations.flags.c_contiguous
    np.testing.assert_array_equal(observations, [zero, zero])
    observations, *_ = env.step(constant(env, 0))
    assert observations.dtype == ours and observations.flags.c_contiguous
    np.testing.assert_array_equal(observations, [zero + 1, zero + 1])
    for _ in range(3):
        observations, _, _, truncated, infos = env.step(constant(env, 0))
    assert truncated.all()
    np.testing.assert_array_equal(observations, [zero, zero])
    for i in range(2):
        assert infos["final_obs"][i].dtype == ours
        np.testing.assert_array_equal(infos["final_obs"][i], zero + 4)


def test_actions_count_from_zero_for_every_environment(make: Maker) -> None:
    env = make("Counting-v0", start=5)
    assert env.single_action_space == spaces.Discrete(3)
    env.reset()
    _, rewards, *_ = env.step(np.array([0, 2]))
    np.testing.assert_array_equal(rewards, [5, 7])  # the reward is the environment's own action


def test_each_environment_ends_its_episodes_independently(make: Maker) -> None:
    env = make("Counting-v0")
    env.reset()
    ends = [env.step(np.array([0, 2]))[2:4] for _ in range(12)]
    truncated = [bool(cut[0]) for _, cut in ends]
    terminated = [bool(ended[1]) for ended, _ in ends]
    assert truncated == [step % 4 == 0 for step in range(1, 13)]
    assert terminated == [step % 3 == 0 for step in range(1, 13)]


def test_frames_are_rendered_if_requested(make: Maker) -> None:
    env = make("Counting-v0", render=True)
    env.reset()
    env.step(constant(env, 0))
    frames = env.render()
    assert frames is not None and len(frames) == 2
    assert all(frame.shape == (16, 16, 3) and (frame == 1).all() for frame in frames)


# --- Refusals ---


@pytest.mark.parametrize("kind", OddSpaces.ALL)
def test_spaces_that_no_algorithm_here_can_use_are_refused_in_one_line(kind: str, make: Maker) -> None:
    with pytest.raises(UsageError) as caught:
        make("OddSpaces-v0", kind=kind)
    message = str(caught.value)
    assert "\n" not in message and "OddSpaces-v0" in message
    assert "Discrete" in message if "actions" in kind else "supported" in message


@pytest.mark.parametrize(
    "env_id", ["pong", "procgen-pong-v0", "Nothing-v0", "gym:Nothing-v0", "CartPole-v99", "", "a b"]
)
def test_an_unknown_id_is_refused_in_one_line_that_lists_the_sixteen_games(env_id: str, make: Maker) -> None:
    with pytest.raises(UsageError) as caught:
        make(env_id)
    message = str(caught.value)
    assert "\n" not in message and repr(env_id) in message
    assert all(game in message for game in GAMES)


def test_an_environment_that_cannot_be_built_is_refused_with_its_reason(make: Maker) -> None:
    with pytest.raises(UsageError, match="no licence") as caught:
        make("Broken-v0")
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="flavour"):
        make("CartPole-v1", flavour=3)


# --- Saved states ---


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
def test_a_restored_environment_continues_exactly_like_the_saved_one_through_new_episodes(
    env_id: str, make: Maker
) -> None:
    env, other = make(env_id, max_episode_steps=30), make(env_id, max_episode_steps=30, seed=9)
    env.reset()
    rng = np.random.default_rng(0)
    actions = rng.integers(0, spaces_of(env).num_actions, (100, 2))
    for each in actions[:17]:
        env.step(each)
    states = env.get_state()
    assert states is not None and all(isinstance(state, bytes) for state in states)
    expected = [env.step(each)[:4] for each in actions]
    assert sum(step[2].sum() + step[3].sum() for step in expected) >= 4
    for reset_before in (False, True):
        if reset_before:
            other.reset()
        other.set_state(states)
        for ours, theirs in zip([other.step(each)[:4] for each in actions], expected, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a, b)


class Colour(enum.IntEnum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: int


class Holder(gymnasium.Env[Any, Any]):
    """An environment that holds what it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def test_plain_attributes_are_restored_with_their_types() -> None:
    attributes: dict[str, Any] = {
        "none": None,
        "number": 0.1 + 0.2,
        "infinite": float("inf"),
        "flag": True,
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.float32(0.1),
        "double": np.float64(0.1),
        "nested": {"a": [1, (2, {"b": None})], 3: "x"},
        "frames": deque([1, 2, 3], maxlen=3),
        "endless": deque([1]),
        "np_random": np.random.default_rng(5),
    }
    saved = state.capture(Holder(**attributes))
    copy = Holder()
    state.restore(copy, saved)
    restored = vars(copy)
    assert restored.keys() == attributes.keys()
    for name in attributes.keys() - {"np_random", "array", "empty"}:
        assert restored[name] == attributes[name] and type(restored[name]) is type(attributes[name]), name
    for name in ("array", "empty"):
        np.testing.assert_array_equal(restored[name], attributes[name])
        assert restored[name].dtype == attributes[name].dtype
    restored["frames"].append(4)
    assert list(restored["frames"]) == [2, 3, 4]  # it still holds only three
    assert restored["np_random"].random() == attributes["np_random"].random()


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, Colour.RED, Pair(1, 2), np.array([None]), gymnasium.Env.close.__get__(3)]
)
def test_values_that_cannot_be_restored_exactly_are_refused(value: Any) -> None:
    with pytest.raises(state.OpaqueState, match=r"Holder\.thing"):
        state.capture(Holder(thing=[value]))


def test_the_state_of_an_environment_with_more_than_plain_data_is_none(make: Maker) -> None:
    for env_id, can_be_saved in (("Counting-v0", True), ("Engine-v0", False)):
        env = make(env_id)
        env.reset()
        assert (env.get_state() is not None) == can_be_saved


@pytest.mark.parametrize(("shape", "layout"), LAYOUTS)
def test_the_axis_of_the_channels_is_the_short_one(shape: tuple[int, ...], layout: str) -> None:
    assert observation_layout(spaces.Box(0, 255, shape, np.uint8), "an environment") == layout
