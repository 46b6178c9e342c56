"""IMPALA with actors and a learner: what is learned from, and how old it is."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from rlcb.errors import RunError
from rlcb.rl.communicator import Communicator
from rlcb.rl.learner import flatten_parameters
from rlcb.rl.models import make_model
from tests.impala_team import N_STEPS, Team, steps_by_environment

TEAMS = {
    "one actor, no lag": {"actors": 1, "max_policy_lag": 0},
    "two actors, no lag": {"actors": 2, "max_policy_lag": 0},
    "three actors, lag 1, one slow": {"actors": 3, "max_policy_lag": 1, "slow": 1},
    "two actors, lag 4, one slow": {"actors": 2, "max_policy_lag": 4, "slow": 0},
    "batches of one unroll": {"actors": 3, "max_policy_lag": 2, "batch_size": 1},
    "batches of fewer unrolls than actors": {"actors": 3, "max_policy_lag": 1, "batch_size": 2, "slow": 2},
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("team", TEAMS.values(), ids=TEAMS)
def test_each_transition_is_learned_from_exactly_once(team: dict[str, Any]) -> None:
    ours = Team(**team)
    updates = 24
    with ours.acting():
        seen = ours.learn(updates)
    unrolls = team.get("batch_size") or team["actors"]
    steps = steps_by_environment(seen)
    assert len(steps) == 2 * team["actors"]  # every environment, and none twice under two names
    for numbers in steps.values():
        assert numbers == list(range(len(numbers)))  # none dropped, none repeated, in the order of time
    assert sum(map(len, steps.values())) == updates * unrolls * 2 * N_STEPS
    assert ours.learner.counters.timesteps == updates * unrolls * 2 * N_STEPS


@pytest.mark.timeout(180)
@pytest.mark.parametrize("team", TEAMS.values(), ids=TEAMS)
def test_a_reward_that_falls_on_the_last_step_of_an_unroll_is_learned_from(team: dict[str, Any]) -> None:
    ours = Team(**team)
    with ours.acting():
        seen = ours.learn(12)
    for each in seen:
        assert (each.scaled_rewards[-1] == 1).all()
        assert (each.scaled_rewards[:-1] == 0).all()
        np.testing.assert_array_equal(each.rewards, each.scaled_rewards)
        # and behind it comes the observation that the next unroll begins with
        np.testing.assert_array_equal(each.last_observations[:, 2], each.observations[-1, :, 2] + 1)
        np.testing.assert_array_equal(each.last_observations[:, :2], each.observations[-1, :, :2])


@pytest.mark.timeout(180)
def test_every_finished_episode_is_reported_once() -> None:
    """Episodes of 6 steps in unrolls of 4, so that most of them lie in two unrolls."""
    ours = Team(2, 2, slow=1, length=6)
    with ours.acting():
        seen = ours.learn(30)
    episodes = [episode for each in seen if each.update for episode in each.update.episodes]
    learned = {key: len(steps) for key, steps in steps_by_environment(seen).items()}
    assert len(episodes) == sum(count // 6 for count in learned.values())
    assert {(episode.reward, episode.length) for episode in episodes} == {(1.0, 6)}
    assert {episode.env for episode in episodes} == {0, 1, 2, 3}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("max_policy_lag", [0, 1, 4])
@pytest.mark.parametrize("slow", [None, 1])
def test_no_unroll_is_older_than_the_policy_may_lag(max_policy_lag: int, slow: int | None) -> None:
    ours = Team(3, max_policy_lag, slow=slow)
    with ours.acting():
        seen = ours.learn(20, pause=0.003)
    for number, each in enumerate(seen):
        lags = number - each.versions
        assert lags.min() >= 0
        assert lags.max() <= max_policy_lag
        assert each.update is not None
        assert each.update.metrics["impala/policy_lag_max"] == lags.max()
        assert each.update.metrics["impala/policy_lag_mean"] == pytest.approx(lags.mean())


@pytest.mark.timeout(180)
def test_with_a_slow_learner_the_lag_is_as_large_as_it_may_be() -> None:
    """Actors then work ahead until every slot is written: the bound is reached, not only kept."""
    ours = Team(2, 3)
    with ours.acting():
        seen = ours.learn(14, behind=True)
    for number, each in enumerate(seen):
        assert (number - each.versions == min(number, 3)).all()


@pytest.mark.timeout(180)
def test_no_actor_gets_further_ahead_of_another_than_the_policy_may_lag() -> None:
    ours = Team(3, 2, slow=2)
    with ours.acting():
        for _ in range(20):
            ours.learn(1)
            begun = ours.store.begun.copy()
            assert begun.max() - begun.min() <= 2 + 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize("max_policy_lag", [0, 3])
def test_the_behaviour_is_that_of_the_version_which_the_unroll_says(max_policy_lag: int) -> None:
    """Stored log-probabilities are those of the parameters after as many updates as the version says."""
    ours = Team(2, max_policy_lag)
    with ours.acting():
        seen = ours.learn(15, pause=0.01)
    model = make_model(ours.config.model, ours.learner.spaces, 0)
    flat = flatten_parameters(model, torch.zeros_like(ours.parameters[0]))
    changed = 0
    for each in seen:
        for i, version in enumerate(each.versions):
            with torch.no_grad():
                flat.copy_(ours.parameters[version])
                logits, _ = model(torch.from_numpy(each.observations[:, i].copy()))
                log_probs = torch.log_softmax(logits, -1)
                taken = log_probs.gather(1, torch.from_numpy(each.actions[:, i].copy())[:, None])[:, 0]
            np.testing.assert_allclose(each.log_probs[:, i], taken.numpy(), atol=1e-5)
            changed += int(version > 0)
    assert changed > 10


@pytest.mark.timeout(180)
@pytest.mark.parametrize("max_policy_lag", [0, 3])
def test_the_value_behind_an_unroll_is_the_learners_own(max_policy_lag: int) -> None:
    ours = Team(2, max_policy_lag, length=100)  # no episode ends, so every unroll has a successor
    with ours.acting():
        seen = ours.learn(8, pause=0.01)
    model = make_model(ours.config.model, ours.learner.spaces, 0)
    flat = flatten_parameters(model, torch.zeros_like(ours.parameters[0]))
    for number, each in enumerate(seen):
        with torch.no_grad():
            flat.copy_(ours.parameters[number])
            values = model(torch.from_numpy(each.last_observations))[1]
        np.testing.assert_allclose(each.bootstrap_values[-1], values.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.timeout(180)
def test_rewards_are_scaled_by_discounted_returns_that_go_on_from_unroll_to_unroll() -> None:
    ours = Team(2, 1, slow=0, normalize_rewards=True, length=6, rewarded=2)
    with ours.acting():
        seen = ours.learn(12)
    returns: dict[tuple[float, float], float] = {}
    samples: list[float] = []
    for each in seen:
        for i in range(each.rewards.shape[1]):
            key = (each.observations[0, i, 0], each.observations[0, i, 1])
            for t in range(N_STEPS):
                total = 0.9 * returns.get(key, 0.0) + float(each.rewards[t, i])
                samples.append(total)
                returns[key] = 0.0 if (each.observations[t, i, 2] + 1) % 6 == 0 else total
        std = float(np.std(samples))
        expected = np.clip(each.rewards / (std + 1e-8), -10, 10)
        np.testing.assert_allclose(each.scaled_rewards, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.timeout(180)
def test_an_actor_that_leaves_a_cell_unwritten_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Team(2, 0)
    real = ours.actors[1].writer.collector.collect

    def forgetful(part: Any, number: int, **options: Any) -> Any:
        kept = part.rewards[2, 0].copy()
        episodes = real(part, number, **options)
        if number == 3:
            part.rewards[2, 0] = kept
        return episodes

    monkeypatch.setattr(ours.actors[1].writer.collector, "collect", forgetful)
    with ours.acting(), pytest.raises(RunError, match="has cells that its actor did not write"):
        ours.learn(6)
    assert len(ours.seen) == 3


@pytest.mark.timeout(180)
def test_an_unroll_older_than_allowed_is_an_error() -> None:
    ours = Team(1, 1)
    with ours.acting():
        ours.learn(4)
        ours.store.version[:] = 0
        with pytest.raises(RunError, match="updates old"):
            ours.learn(1)


class SummingCommunicator(Communicator):
    """A group of one process that asks for memory for its sums, of the size of a vector."""

    vector_bytes = 0
    memory = memoryview(b"")

    def memory_for_sums(self, vector_bytes: int) -> int:
        self.vector_bytes = vector_bytes
        return vector_bytes

    def use_memory(self, memory: Any) -> None:
        self.memory = memoryview(memory)


class SummingTeam(Team):
    COMMUNICATOR = SummingCommunicator


def test_learners_sum_through_memory_that_no_unroll_and_no_parameter_uses() -> None:
    team = SummingTeam(2, 1)
    communicator = team.learner.communicator
    assert isinstance(communicator, SummingCommunicator)
    sums = team.learner.learner.sums
    assert communicator.vector_bytes == sums.nbytes <= len(communicator.memory)
    part = communicator.memory[: sums.nbytes]
    part[:] = b"\xee" * sums.nbytes
    with team.acting():
        team.learn(6)
    assert bytes(part) == b"\xee" * sums.nbytes


def test_learners_whose_memory_is_on_disk_do_not_sum_through_it() -> None:
    class OnDisk(SummingTeam):
        OVERRIDES: ClassVar[dict[str, Any]] = {"parallel": {"buffer": "mmap"}}

    communicator = OnDisk(2, 1).learner.communicator
    assert isinstance(communicator, SummingCommunicator)
    assert not communicator.memory
