"""The Procgen vector environment on the real games: names, layout, seeds, levels, states, modes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlcb.config.games import GAMES, GAMES_WITH_MODE, MAX_LEVEL, procgen_game
from rlcb.config.settings import EnvConfig
from rlcb.envs.procgen import NUM_ACTIONS, ProcgenVectorEnv
from rlcb.envs.vector_env import groups_of

Trajectory = list[tuple[NDArray[Any], ...]]


class Maker:
    """Makes environments and closes them when the test is over."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def __call__(
        self,
        env_id: str = "coinrun",
        seeds: Sequence[int] = (1,),
        group_size: int = 2,
        num_threads: int = 0,
        render: bool = False,
        max_episode_steps: int | None = None,
        envs: range | None = None,
        **settings: Any,
    ) -> ProcgenVectorEnv:
        config = EnvConfig.model_validate({"id": env_id, **settings})
        game = procgen_game(env_id)
        assert game is not None
        env = ProcgenVectorEnv(game, config, seeds, group_size, num_threads, render, max_episode_steps, envs)
        self.stack.callback(env.close)
        return env


@pytest.fixture
def make() -> Iterator[Maker]:
    with ExitStack() as stack:
        yield Maker(stack)


def actions_for(num_envs: int, steps: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, NUM_ACTIONS, (steps, num_envs))


def play(env: ProcgenVectorEnv, actions: NDArray[np.int64]) -> Trajectory:
    return [env.step(each)[:4] for each in actions]


def assert_same(
    one: Trajectory, other: Trajectory, first: slice = slice(None), second: slice = slice(None)
) -> None:
    """Equal observations, rewards and ends in every step, for some columns of each."""
    assert len(one) == len(other)
    for step_of_one, step_of_other in zip(one, other, strict=True):
        for a, b in zip(step_of_one, step_of_other, strict=True):
            np.testing.assert_array_equal(a[first], b[second])


# --- The games ---


@pytest.mark.parametrize("game", GAMES)
def test_every_game_is_found_by_each_form_of_its_name(game: str, make: Maker) -> None:
    trajectories = []
    for form in (game, f"procgen-{game}-v0", f"procgen:procgen-{game}-v0"):
        env = make(form, seeds=[3])
        first, infos = env.reset()
        assert first.shape == (2, 64, 64, 3) and first.dtype == np.uint8 and infos == {}
        assert first.std() > 1  # a picture, not a blank
        trajectories.append(play(env, actions_for(2, 15)))
    observations, rewards, terminated, truncated = trajectories[0][-1]
    assert observations.shape == (2, 64, 64, 3) and observations.dtype == np.uint8
    assert rewards.shape == (2,) and rewards.dtype == np.float32
    assert terminated.dtype == truncated.dtype == np.bool_
    assert not truncated.any()
    assert_same(trajectories[0], trajectories[1])
    assert_same(trajectories[0], trajectories[2])


@pytest.mark.parametrize(
    ("mode", "game"),
    [
        ("easy", "coinrun"),
        ("hard", "maze"),
        ("extreme", "chaser"),
        ("memory", "maze"),
        ("exploration", "coinrun"),
    ],
)
def test_each_mode_runs_on_a_game_that_has_it_and_differs_from_easy(
    mode: str, game: str, make: Maker
) -> None:
    assert game in GAMES_WITH_MODE[mode]
    env = make(game, seeds=[1], distribution_mode=mode)
    picture, _ = env.reset()
    play(env, actions_for(2, 10))
    easy, _ = make(game, seeds=[1]).reset()
    assert np.array_equal(picture, easy) == (mode == "easy")


def test_spaces_equal_procgens(make: Maker) -> None:
    env = make(seeds=[1, 2, 3], group_size=2)
    assert env.num_envs == 6
    assert env.single_observation_space.shape == (64, 64, 3)
    assert env.single_observation_space.dtype == np.uint8
    assert env.single_action_space.n == 15  # type: ignore[attr-defined]
    assert env.observation_space.shape == (6, 64, 64, 3)
    assert env.observation_space.contains(env.reset()[0])
    assert env.action_space.contains(np.zeros(6, np.int64))


def test_observations_are_contiguous_and_not_overwritten_by_the_next_step(make: Maker) -> None:
    env = make("starpilot", seeds=[1, 2])
    kept, _ = env.reset()
    copy = kept.copy()
    observations, *_ = env.step(np.zeros(4, np.int64))
    copy_of_second = observations.copy()
    env.step(np.zeros(4, np.int64))
    assert kept.flags.c_contiguous and observations.flags.c_contiguous
    np.testing.assert_array_equal(kept, copy)
    np.testing.assert_array_equal(observations, copy_of_second)
    assert not np.array_equal(copy, copy_of_second)


def test_procgens_own_options_reach_the_game(make: Maker) -> None:
    plain, _ = make(seeds=[1]).reset()
    bare, _ = make(seeds=[1], procgen={"use_backgrounds": False}).reset()
    assert not np.array_equal(plain, bare)


# --- Groups and seeds ---


def test_a_group_has_the_same_random_stream_at_any_position(make: Maker) -> None:
    actions = actions_for(6, 60)
    together = make("coinrun", seeds=[11, 22, 33])
    first, _ = together.reset()
    trajectory = play(together, actions)
    for index, seed in enumerate([11, 22, 33]):
        own = slice(2 * index, 2 * index + 2)
        alone = make("coinrun", seeds=[seed])
        np.testing.assert_array_equal(alone.reset()[0], first[own])
        assert_same(play(alone, actions[:, own]), trajectory, second=own)
    assert not np.array_equal(first[:2], first[2:4])


def test_native_threads_do_not_change_observations_and_rewards(make: Maker) -> None:
    actions = actions_for(8, 60)
    envs = [make("fruitbot", seeds=[5, 6], group_size=4, num_threads=threads) for threads in (0, 1, 2)]
    starts = [env.reset()[0] for env in envs]
    trajectories = [play(env, actions) for env in envs]
    for start, trajectory in zip(starts[1:], trajectories[1:], strict=True):
        np.testing.assert_array_equal(start, starts[0])
        assert_same(trajectory, trajectories[0])


def test_the_levels_after_the_first_reset_depend_on_the_seed(make: Maker) -> None:
    one, again, other = (make(seeds=[seed], group_size=4) for seed in (4, 4, 5))
    np.testing.assert_array_equal(one.reset()[0], again.reset()[0])
    assert not np.array_equal(one.level_seeds(), other.level_seeds())


def test_a_reset_with_a_seed_equals_a_new_environment_with_that_seed(make: Maker) -> None:
    actions = actions_for(4, 20)
    env = make(seeds=[1, 2])
    env.reset()
    play(env, actions)
    fresh = make(seeds=[7, 9])
    np.testing.assert_array_equal(env.reset(seed=[7, 9])[0], fresh.reset()[0])
    assert_same(play(env, actions), play(fresh, actions))
    with pytest.raises(ValueError, match="2 groups"):
        env.reset(seed=[1, 2, 3])
    counted = make(seeds=[30, 31])  # one number: one more for each group
    np.testing.assert_array_equal(env.reset(seed=30)[0], counted.reset()[0])


def test_a_reset_without_a_seed_starts_new_episodes(make: Maker) -> None:
    env = make(seeds=[1], group_size=8)
    env.reset()
    levels = env.level_seeds()
    before, _ = env.reset()  # nothing has happened: still the first frame of the first episode
    np.testing.assert_array_equal(env.level_seeds(), levels)
    play(env, actions_for(8, 5))
    after, _ = env.reset()
    assert not np.array_equal(env.level_seeds(), levels)
    assert not np.array_equal(before, after)


# --- Episodes ---


def test_an_ended_episode_shows_the_first_frame_of_the_next_one(make: Maker) -> None:
    env = make("fruitbot", seeds=[1], group_size=8)
    env.reset()
    levels = env.level_seeds()
    for actions in actions_for(8, 300):
        _, _, terminated, truncated, infos = env.step(actions)
        now = env.level_seeds()
        assert not truncated.any() and infos == {}
        np.testing.assert_array_equal(now[~terminated], levels[~terminated])  # a level lasts for an episode
        if terminated.any():
            assert (now[terminated] != levels[terminated]).any()
            return
        levels = now
    pytest.fail("no episode ended")


def test_max_episode_steps_truncates_every_episode_after_exactly_that_many_steps(make: Maker) -> None:
    env = make("starpilot", seeds=[2], group_size=8, max_episode_steps=7)
    env.reset()
    lengths = np.zeros(8, int)
    seen = []
    for actions in actions_for(8, 60):
        _, _, terminated, truncated, _ = env.step(actions)
        lengths += 1
        assert not (terminated & truncated).any()
        np.testing.assert_array_equal(truncated, lengths == 7)
        ended = terminated | truncated
        seen += list(lengths[ended])
        lengths[ended] = 0
    assert max(seen) == 7
    assert len(seen) >= 8 * 8


def test_a_reset_sets_the_step_count_of_episodes_to_zero(make: Maker) -> None:
    env = make("coinrun", seeds=[2], max_episode_steps=3)
    env.reset()
    for _ in range(2):
        env.step(np.zeros(2, np.int64))
    env.reset()
    ends = [env.step(np.zeros(2, np.int64))[3].all() for _ in range(3)]
    assert ends == [False, False, True]


# --- Levels ---


def levels_seen(env: ProcgenVectorEnv, resets: int = 10) -> NDArray[np.int64]:
    """The levels of several episodes in every environment."""
    env.reset()
    seen = [env.level_seeds()]
    for _ in range(resets):
        env.step(np.zeros(env.num_envs, np.int64))
        env.reset()
        seen.append(env.level_seeds())
    return np.concatenate(seen)


def test_levels_come_from_the_configured_set(make: Maker) -> None:
    seen = levels_seen(make(seeds=[1], group_size=16, num_levels=5, start_level=100))
    assert set(seen) == {100, 101, 102, 103, 104}


def test_without_a_limit_levels_still_start_at_the_start_level(make: Maker) -> None:
    start = MAX_LEVEL - 50
    seen = levels_seen(make(seeds=[1], group_size=16, num_levels=0, start_level=start))
    assert start <= seen.min() and seen.max() < MAX_LEVEL
    assert len(set(seen)) > 10
    far = levels_seen(make(seeds=[1], group_size=16, num_levels=0, start_level=1_000_000))
    assert far.min() >= 1_000_000
    assert len(set(far)) > 150  # of 176: all levels behind it are open


def test_without_a_limit_and_a_start_level_all_levels_are_played(make: Maker) -> None:
    seen = levels_seen(make(seeds=[1], group_size=16, num_levels=0))
    assert len(set(seen)) > 150
    assert seen.max() > MAX_LEVEL // 2


def test_exploration_has_one_level(make: Maker) -> None:
    assert len(set(levels_seen(make("maze", seeds=[1, 2], distribution_mode="exploration"), 4))) == 1


# --- Saved states ---


@pytest.mark.parametrize("game", GAMES)
def test_a_restored_environment_continues_exactly_like_the_saved_one_through_new_episodes(
    game: str, make: Maker
) -> None:
    env = make(game, seeds=[1, 2])
    env.reset()
    before = play(env, actions_for(4, 25))
    saved = env.get_state()
    assert len(saved) == 4 and all(isinstance(state, bytes) for state in saved)
    actions = actions_for(4, 60, seed=1)
    expected = play(env, actions)
    env.reset()
    expected_levels = env.level_seeds()

    other = make(game, seeds=[77, 78])
    other.reset()
    np.testing.assert_array_equal(other.set_state(saved), before[-1][0])
    assert_same(play(other, actions), expected)
    other.reset()  # the levels of the next episodes come from the restored streams too
    np.testing.assert_array_equal(other.level_seeds(), expected_levels)


def test_states_can_be_restored_in_other_groups(make: Maker) -> None:
    env = make("bigfish", seeds=[1, 2])
    env.reset()
    play(env, actions_for(4, 10))
    saved = env.get_state()
    wide = make("bigfish", seeds=[9], group_size=4)
    wide.reset()
    wide.set_state(saved)
    actions = actions_for(4, 30, seed=2)
    assert_same(play(wide, actions), play(env, actions))


# --- Parts of groups ---


@pytest.mark.parametrize("num_threads", [0, 1])
def test_parts_of_groups_have_the_levels_and_frames_of_whole_groups(make: Maker, num_threads: int) -> None:
    whole = make("bigfish", seeds=[3, 4, 5], group_size=4)
    first_frames, _ = whole.reset()
    actions = actions_for(12, 200)
    expected = play(whole, actions)
    assert sum(int(step[2].sum()) for step in expected) > 12  # each environment drew new levels
    for envs in (range(1), range(2, 7), range(3, 12), range(6, 7)):
        groups, inside = groups_of(envs, 4)
        seeds = [3 + group for group in groups]
        part = make("bigfish", seeds=seeds, group_size=4, num_threads=num_threads, envs=inside)
        assert part.num_envs == len(envs)
        np.testing.assert_array_equal(part.reset()[0], first_frames[envs.start : envs.stop])
        rows = slice(envs.start, envs.stop)
        assert_same(play(part, actions[:, rows]), expected, second=rows)
    np.testing.assert_array_equal(whole.level_seeds()[6:7], part.level_seeds())


def test_a_part_of_groups_restarts_with_the_levels_of_the_whole(make: Maker) -> None:
    seeds = [np.random.SeedSequence(each) for each in (7, 8)]
    whole, part = make(seeds=[1, 2], group_size=4), make(seeds=[1, 2], group_size=4, envs=range(3, 6))
    np.testing.assert_array_equal(part.restart(seeds), whole.restart(seeds)[3:6])
    np.testing.assert_array_equal(part.level_seeds(), whole.level_seeds()[3:6])


# --- Rendering ---


def test_rendered_frames_are_large_and_exist_only_with_render(make: Maker) -> None:
    env = make(seeds=[1, 2], render=True)
    env.reset()
    frames = env.render()
    assert frames is not None and len(frames) == 4
    assert all(frame.shape == (512, 512, 3) and frame.dtype == np.uint8 for frame in frames)
    plain = make(seeds=[1, 2])
    plain.reset()
    assert plain.render() is None
    actions = actions_for(4, 10)
    assert_same(play(env, actions), play(plain, actions))  # looking does not change what happens


def test_a_closed_environment_can_be_closed_again(make: Maker) -> None:
    env = make(seeds=[1])
    env.reset()
    env.close()
    env.close()


FORGOTTEN = """
import gc
import cffi.api
from rlcb.config.settings import EnvConfig
from rlcb.envs.procgen import ProcgenVectorEnv

def make():
    return ProcgenVectorEnv("coinrun", EnvConfig.model_validate({"id": "coinrun"}), (1,), 2)

def open_library(*arguments, open_it=cffi.api._make_ffi_library):  # called with cffi's lock held
    gc.set_threshold(1)
    garbage = [[] for _ in range(10)]  # collects, if that is allowed
    return open_it(*arguments)

gc.set_threshold(10**9)  # collects later
env = make()
env.cycle = env  # so that only garbage collection ends it
del env
cffi.api._make_ffi_library = open_library
make().close()
print("made", gc.isenabled())
"""


def test_a_forgotten_environment_does_not_stop_the_making_of_another() -> None:
    result = subprocess.run([sys.executable, "-c", FORGOTTEN], capture_output=True, text=True, timeout=60)
    assert result.stdout == "made True\n", result.stderr
