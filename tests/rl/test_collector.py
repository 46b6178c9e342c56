"""The collector: values of true successors, sampled actions, finished episodes, errors of environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlcb.config.settings import EnvConfig, ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.envs.vector_env import make_vector_env, spaces_of
from rlcb.errors import RunError
from rlcb.rl.collector import Collector, join_states, slice_state
from rlcb.rl.models import ActorCritic, make_model
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.timing import PhaseTimer
from rlcb.seeding import group_seed

SPACES = Spaces((3,), "float32", 4)
STEPS, ENVS = 12, 4


class Scripted(VectorEnv[NDArray[Any], NDArray[Any], NDArray[Any]]):
    """An environment that follows a script and remembers what it showed.

    Environment i shows at its k-th step (all episodes counted) a random vector of its own; an episode's last
    observation is another one, which only `final_obs` shows.
    """

    def __init__(self, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], seed: int = 0) -> None:
        self.num_envs = terminated.shape[1]
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
        self.single_action_space = gymnasium.spaces.Discrete(4)
        self.terminated, self.truncated = terminated, truncated
        rng = np.random.default_rng(seed)
        shape = terminated.shape
        self.shown = rng.normal(size=(shape[0] + 1, shape[1], 3)).astype(np.float32)
        self.last_of_episode = rng.normal(size=(*shape, 3)).astype(np.float32)
        self.rewards = rng.normal(size=shape)
        self.actions: list[NDArray[Any]] = []

    def reset(self, **_: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        return self.shown[0].copy(), {}

    def step(self, actions: NDArray[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        t = len(self.actions)
        self.actions.append(np.array(actions))
        terminated, truncated = self.terminated[t].copy(), self.truncated[t].copy()
        infos: dict[str, Any] = {}
        if (terminated | truncated).any():
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(terminated | truncated):
                infos["final_obs"][i] = self.last_of_episode[t, i]
        return self.shown[t + 1].copy(), self.rewards[t].copy(), terminated, truncated, infos


def scripted(end_rate: float = 0.2, steps: int = STEPS, seed: int = 0) -> Scripted:
    rng = np.random.default_rng(seed + 100)
    terminated, truncated = rng.random((2, steps, ENVS)) < end_rate
    return Scripted(terminated, truncated, seed)


def small_model(spaces: Spaces = SPACES) -> ActorCritic:
    """A network whose policy is far from uniform."""
    model = make_model(ModelConfig(mlp_sizes=(16,)), spaces, 0)
    with torch.no_grad():
        model.policy.weight.mul_(100)
    return model


def make_collector(env: Any, model: ActorCritic, seed: int = 1, first_env: int = 0) -> Collector:
    return Collector(env, model, seed, first_env, PhaseTimer(), lambda: None)


def values_of(model: ActorCritic, observations: NDArray[Any]) -> NDArray[np.float32]:
    with torch.no_grad():
        flat = torch.from_numpy(observations.reshape(-1, *observations.shape[2:]))
        values: NDArray[np.float32] = model(flat)[1].numpy()
    return values.reshape(observations.shape[:2])


# --- What a rollout holds ---


@pytest.mark.parametrize("end_rate", [0.0, 0.2, 0.9])
def test_bootstrap_values_are_the_values_of_the_true_successors(end_rate: float) -> None:
    env, model = scripted(end_rate), small_model()
    rollout = RolloutBuffer(STEPS, ENVS, SPACES)
    make_collector(env, model).collect(rollout, 0)
    next_values = values_of(model, env.shown[1:])  # in the last row, of what comes after the rollout
    final_values = values_of(model, env.last_of_episode)
    cut = env.truncated & ~env.terminated
    assert end_rate == 0 or (cut.any() and env.terminated.any())
    np.testing.assert_allclose(
        rollout.bootstrap_values, np.where(cut, final_values, next_values), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(rollout.values, values_of(model, env.shown[:-1]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("last_values", [True, False])
def test_a_rollout_that_ends_with_truncations_bootstraps_from_their_final_observations(
    last_values: bool,
) -> None:
    truncated = np.zeros((STEPS, ENVS), np.bool_)
    truncated[-1, 1:] = True
    env, model = Scripted(np.zeros_like(truncated), truncated), small_model()
    rollout = RolloutBuffer(STEPS, ENVS, SPACES)
    make_collector(env, model).collect(rollout, 0, last_values)
    expected = values_of(model, env.last_of_episode[-1:])[0]
    expected[0] = values_of(model, env.shown[-1:])[0, 0] if last_values else 0.0
    np.testing.assert_allclose(rollout.bootstrap_values[-1], expected, rtol=1e-4, atol=1e-6)


def test_observations_rewards_and_ends_are_stored_as_the_environment_gave_them() -> None:
    env = scripted(0.4)
    rollout = RolloutBuffer(STEPS, ENVS, SPACES)
    make_collector(env, small_model()).collect(rollout, 0)
    np.testing.assert_array_equal(rollout.observations, env.shown[:-1])
    np.testing.assert_array_equal(rollout.rewards, env.rewards.astype(np.float32))  # raw
    np.testing.assert_array_equal(rollout.actions, env.actions)
    np.testing.assert_array_equal(rollout.terminated, env.terminated)
    assert (env.terminated & env.truncated).any()  # both flags are a termination
    np.testing.assert_array_equal(rollout.truncated, env.truncated & ~env.terminated)


def test_log_probabilities_belong_to_the_chosen_actions() -> None:
    env, model = scripted(), small_model()
    rollout = RolloutBuffer(STEPS, ENVS, SPACES)
    make_collector(env, model).collect(rollout, 0)
    with torch.no_grad():
        logits = model(torch.from_numpy(rollout.flat("observations")))[0].double().numpy()
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    taken = log_probabilities[np.arange(len(logits)), rollout.flat("actions")]
    np.testing.assert_allclose(rollout.flat("log_probs"), taken, rtol=1e-4, atol=1e-5)


def test_the_second_rollout_begins_where_the_first_one_ended() -> None:
    env, model = scripted(steps=2 * STEPS), small_model()
    collector = make_collector(env, model)
    rollouts = [RolloutBuffer(STEPS, ENVS, SPACES) for _ in range(2)]
    for update, rollout in enumerate(rollouts):
        collector.collect(rollout, update)
    np.testing.assert_array_equal(
        np.concatenate([rollout.observations for rollout in rollouts]), env.shown[:-1]
    )


def test_workers_fill_their_columns_like_a_single_process() -> None:
    model = small_model()
    whole, shared = RolloutBuffer(STEPS, ENVS, SPACES), RolloutBuffer(STEPS, ENVS, SPACES)
    make_collector(scripted(), model).collect(whole, 3)
    for first in (0, 2):
        env = scripted()
        own = slice(first, first + 2)
        part = Scripted(env.terminated[:, own], env.truncated[:, own])
        part.shown, part.last_of_episode = env.shown[:, own], env.last_of_episode[:, own]
        part.rewards = env.rewards[:, own]
        make_collector(part, model, first_env=first).collect(shared.columns(first, 2), 3)
    for name in ("observations", "actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(whole, name), err_msg=name)
    for name in ("values", "bootstrap_values", "log_probs"):
        np.testing.assert_allclose(getattr(shared, name), getattr(whole, name), rtol=1e-4, atol=1e-6)


def test_actions_depend_only_on_seed_update_and_environment() -> None:
    def actions(seed: int, update: int, first_env: int) -> NDArray[np.int64]:
        rollout = RolloutBuffer(STEPS, ENVS, SPACES)
        make_collector(scripted(), small_model(), seed, first_env).collect(rollout, update)
        return rollout.actions

    np.testing.assert_array_equal(actions(1, 2, 3), actions(1, 2, 3))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(actions(1, 2, 3), actions(*other))


# --- Episodes ---


def test_episodes_across_rollouts_have_their_raw_return_and_length() -> None:
    env = scripted(0.15, steps=3 * STEPS)
    collector = make_collector(env, small_model(), first_env=8)
    found: list[tuple[Any, ...]] = []
    for update in range(3):
        episodes = collector.collect(RolloutBuffer(STEPS, ENVS, SPACES), update)
        assert list(episodes) == sorted(episodes, key=lambda each: (each.step, each.env))
        found += [(update * STEPS + each.step, each.env, each.reward, each.length) for each in episodes]
    expected: list[tuple[Any, ...]] = []
    for i in range(ENVS):
        start = 0
        for t in range(3 * STEPS):
            if env.terminated[t, i] or env.truncated[t, i]:
                total = env.rewards[start : t + 1, i].astype(np.float32).astype(np.float64).sum()
                expected.append((t, 8 + i, pytest.approx(total, rel=1e-9), t + 1 - start))
                start = t + 1
    assert len(expected) > 20
    assert found == sorted(expected, key=lambda each: each[:2])


# --- Faults ---


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_a_reward_outside_of_float32_ends_the_run_and_names_environment_and_step(bad: float) -> None:
    env = scripted(0.0)
    env.rewards[5, 2] = bad
    rollout = RolloutBuffer(STEPS, ENVS, SPACES)
    with pytest.raises(RunError) as caught:
        make_collector(env, small_model(), first_env=8).collect(rollout, 7)
    message = str(caught.value)
    assert "environment 10 " in message and "step 5 of update 7" in message and "reward" in message
    assert str(bad) in message and "\n" not in message


def test_the_largest_number_of_float32_is_a_reward() -> None:
    env = scripted(0.0)
    largest = float(np.finfo(np.float32).max)
    env.rewards[5, 2] = -largest
    rollout = RolloutBuffer(STEPS, ENVS, SPACES)
    make_collector(env, small_model()).collect(rollout, 0)
    assert float(rollout.rewards[5, 2]) == -largest


def test_an_observation_that_is_not_finite_ends_the_run_in_one_line() -> None:
    env = scripted(0.0)
    env.shown[4, 1, 2] = np.nan
    with pytest.raises(RunError) as caught:
        make_collector(env, small_model()).collect(RolloutBuffer(STEPS, ENVS, SPACES), 0)
    message = str(caught.value)
    assert "environment 1 " in message and "step 3 of update 0" in message and "observation nan" in message
    assert "\n" not in message


def test_a_first_observation_that_is_not_finite_fails_before_learning_starts() -> None:
    env = scripted(0.0)
    env.shown[0, 3, 0] = np.inf
    with pytest.raises(RunError, match="environment 11 returned observation inf at its first reset"):
        make_collector(env, small_model(), first_env=8)


def test_a_vector_environment_that_raises_ends_the_run_and_names_environments_and_step() -> None:
    env = scripted(0.0, steps=4)  # the script is too short
    with pytest.raises(RunError) as caught:
        make_collector(env, small_model(), first_env=4).collect(RolloutBuffer(STEPS, ENVS, SPACES), 2)
    message = str(caught.value)
    assert "4 to 7" in message and "step 4 of update 2" in message and "IndexError" in message
    assert "\n" not in message
    assert isinstance(caught.value.__cause__, IndexError)  # for who wants to see where


class Fragile(gymnasium.Env[Any, Any]):
    """Raises at its first reset, fourth step or the reset after it, if it is the one with number `index`."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,))
    action_space = gymnasium.spaces.Discrete(4)
    made = 0

    def __init__(self, when: str, index: int) -> None:
        self.when = when
        self.fragile = Fragile.made == index
        Fragile.made += 1
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if self.fragile and self.when == ("reset" if self.steps else "first reset"):
            raise OSError("the emulator\nis gone")
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.fragile and self.when == "step" and self.steps == 4:
            raise OSError("the emulator\nis gone")
        return np.zeros(3, np.float32), 0.0, self.steps == 4, False, {}


@pytest.fixture
def make_env() -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:

        def make(env_id: str, num_envs: int, **kwargs: Any) -> Any:
            config = EnvConfig.model_validate({"id": env_id, "num_envs": num_envs, "kwargs": kwargs})
            env = make_vector_env(config, [group_seed(0, 0)], num_envs)
            stack.callback(env.close)
            return env

        yield make


@pytest.mark.parametrize("when", ["first reset", "step", "reset"])
def test_a_gymnasium_environment_that_raises_is_named_with_its_step_in_one_line(
    when: str, make_env: Callable[..., Any]
) -> None:
    fragile: Any = Fragile
    gymnasium.register("Fragile-v0", fragile)
    try:
        Fragile.made = 0
        env = make_env("Fragile-v0", 3, when=when, index=1)
    finally:
        del gymnasium.registry["Fragile-v0"]
    with pytest.raises(RunError) as caught:
        make_collector(env, small_model(), first_env=6).collect(RolloutBuffer(STEPS, 3, SPACES), 1)
    message = str(caught.value)
    assert "environment 7 " in message
    assert ("first reset" if when == "first reset" else "step 3 of update 1") in message
    assert "OSError: the emulator" in message and "\n" not in message


def test_the_heartbeat_is_called_before_every_step_and_may_abandon_the_rollout() -> None:
    class Stop(Exception):
        pass

    env = scripted()

    def heartbeat() -> None:
        if len(env.actions) == 5:
            raise Stop

    collector = Collector(env, small_model(), 0, 0, PhaseTimer(), heartbeat)
    with pytest.raises(Stop):
        collector.collect(RolloutBuffer(STEPS, ENVS, SPACES), 0)
    assert len(env.actions) == 5


# --- Saving and going on ---


@pytest.mark.parametrize("env_id", ["CartPole-v1", "coinrun"])
def test_a_collector_that_loads_a_state_continues_like_the_saved_one(
    env_id: str, make_env: Callable[..., Any]
) -> None:
    env = make_env(env_id, 2)
    spaces = spaces_of(env)
    model = (
        small_model(spaces)
        if not spaces.is_image
        else make_model(ModelConfig(impala_channels=(4,)), spaces, 0)
    )
    steady = make_collector(env, model)
    steady.collect(RolloutBuffer(STEPS, 2, spaces), 0)
    state = steady.state()
    expected = RolloutBuffer(4 * STEPS, 2, spaces)
    expected_episodes = steady.collect(expected, 1)

    resumed = make_collector(make_env(env_id, 2), model)
    assert resumed.load(state) is True
    rollout = RolloutBuffer(4 * STEPS, 2, spaces)
    assert resumed.collect(rollout, 1) == expected_episodes
    for name in ("observations", "actions", "rewards", "terminated", "values", "bootstrap_values"):
        np.testing.assert_array_equal(getattr(rollout, name), getattr(expected, name), err_msg=name)


def collector_state(first: int, env_states: list[torch.Tensor] | None) -> dict[str, Any]:
    """Return the state of two environments, numbered from `first`."""
    return {
        "env_states": env_states,
        "observations": torch.tensor([[first], [first + 1]]),
        "running_rewards": [float(first), float(first + 1)],
        "running_lengths": [first, first + 1],
    }


def test_the_states_of_two_collectors_join_and_come_apart_again() -> None:
    saved = [torch.tensor([index]) for index in range(4)]
    one, two = collector_state(0, saved[:2]), collector_state(2, saved[2:])
    joined = join_states([one, two])
    assert [int(state) for state in joined["env_states"]] == [0, 1, 2, 3]
    assert joined["observations"].flatten().tolist() == [0, 1, 2, 3]
    assert joined["running_rewards"] == [0.0, 1.0, 2.0, 3.0]
    assert joined["running_lengths"] == [0, 1, 2, 3]
    apart = slice_state(joined, slice(2, 4))
    assert torch.equal(apart.pop("observations"), two["observations"])
    assert apart == {name: value for name, value in two.items() if name != "observations"}


@pytest.mark.parametrize("missing", [0, 1])
def test_states_join_without_environments_if_one_collector_cannot_save_them(missing: int) -> None:
    parts = [
        collector_state(2 * index, None if index == missing else [torch.zeros(1)] * 2) for index in range(2)
    ]
    joined = join_states(parts)
    assert joined["env_states"] is None
    assert slice_state(joined, slice(0, 2))["env_states"] is None
    assert slice_state(joined, slice(0, 2))["running_lengths"] == [0, 1]


def test_environments_that_cannot_be_saved_are_reported() -> None:
    collector = make_collector(scripted(), small_model())
    state = collector.state()
    assert state["env_states"] is None
    assert make_collector(scripted(), small_model()).load(state) is False


def test_a_saved_state_is_a_copy_of_tensors_and_plain_values() -> None:
    collector = make_collector(scripted(), small_model())
    state = collector.state()
    before = state["observations"].clone()
    collector.collect(RolloutBuffer(STEPS, ENVS, SPACES), 0)
    assert torch.equal(state["observations"], before)
    assert state["running_rewards"] == [0.0] * ENVS and state["running_lengths"] == [0] * ENVS
