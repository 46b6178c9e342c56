"""IMPALA with actors and learners: what is learned from, how old it is, and how such a run ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray

from src import impala
from src.actor import Actor
from src.central_learner import CentralLearner, open_shared_parts, store_size
from src.cli import main
from src.config import Config
from src.config_file import build_config
from src.distributed import Communicator
from src.errors import RunError, UsageError
from src.evaluation_cli import main as evaluate
from src.learner import flatten_parameters
from src.learning_process import Update
from src.models import Spaces, make_model
from src.presence import Presence
from src.run_folder import RunFolder
from src.slot_queue import SlotQueue
from src.unroll_store import UnrollStore
from src.worker_process import Job, Link
from tests import runs, step_env
from tests.runs import left_in_shared_memory

SCRIPT = "train_impala_parallel.py"
N_STEPS = 4
STEP = (
    *("--env", step_env.ID, "--num-envs", 4, "--n-steps", N_STEPS, "--set", "impala.num_actors=2"),
    *("--set", "impala.num_learners=1", "--set", "logging.tensorboard=false"),
    *("--set", "logging.snapshot_seconds=0"),
)
PER_UPDATE = 4 * N_STEPS


def of_env(**kwargs: object) -> tuple[str, ...]:
    return tuple(
        part for key, value in kwargs.items() for part in ("--set", f"env.kwargs.{key}={json.dumps(value)}")
    )


def require_exact_counts(folder: Path, timesteps: int) -> None:
    """Every transition of whole unrolls counts once: an episode is an unroll, its reward falls on its end."""
    record, rows = runs.record(folder), runs.rows(folder)
    assert record["status"] == "completed"
    assert record["total_timesteps"] == timesteps
    assert record["total_updates"] == len(rows) == timesteps // PER_UPDATE
    assert [row["timesteps"] for row in rows] == list(range(PER_UPDATE, timesteps + 1, PER_UPDATE))
    assert [row["rollout/episodes"] for row in rows] == [row["timesteps"] // N_STEPS for row in rows]
    assert {row["rollout/ep_reward_mean"] for row in rows} == {1.0}
    assert {row["rollout/ep_length_mean"] for row in rows} == {float(N_STEPS)}


# --- Actors and a learner in one process, so that all that is learned from can be seen ---


class SlowActor(Actor):
    """Loses time before every step of its environments."""

    def heartbeat(self) -> None:
        time.sleep(0.004)
        super().heartbeat()


@dataclass
class Seen:
    """What one update learned from."""

    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    scaled_rewards: NDArray[np.float32]
    bootstrap_values: NDArray[np.float32]
    last_observations: NDArray[np.float32]
    versions: NDArray[np.int64]
    """By column."""
    update: Update | None = None


class Team:
    """Actors in threads, the learner in this one."""

    def __init__(
        self,
        actors: int,
        max_policy_lag: int,
        envs_per_actor: int = 2,
        batch_size: int | None = None,
        slow: int | None = None,
        normalize_rewards: bool = False,
        **env_kwargs: int,
    ) -> None:
        """`slow` is the number of a slow actor; `batch_size` counts unrolls."""
        self.config = config(
            actors, max_policy_lag, envs_per_actor, batch_size, normalize_rewards, **env_kwargs
        )
        context = multiprocessing.get_context("spawn")
        self.presence = Presence(context, actors + 1)
        ends = (context.Pipe(duplex=False), context.Pipe(duplex=False))
        job = Job("", None, ends, self.config, RunFolder(None, self.config), 1, False, False, os.getpid())
        links = [self._link(rank) for rank in range(actors + 1)]
        self.actors = [
            (SlowActor if number == slow else Actor)(job, links[1 + number], number, 0)
            for number in range(actors)
        ]
        queues = tuple(SlotQueue(pair) for pair in ends)
        spaces, memory = self.actors[0].spaces, bytearray(2**20)
        self.learner = CentralLearner(
            self.config,
            Communicator(),
            1,
            links[0].check,
            lambda size: memory,
            spaces,
            queues,
            links[0],
            calibration=None,
        )
        self.store: UnrollStore = self.learner.store
        for actor in self.actors:
            store, weights = open_shared_parts(self.config, spaces, actor.num_parameters, lambda size: memory)
            actor.join(store, weights, queues)
        self.parameters = [self.learner.learner.parameters.detach().clone()]
        """Those of every version."""
        self.seen: list[Seen] = []
        self.errors: list[BaseException] = []

    def _link(self, rank: int) -> Link:
        connection: Any = None
        return Link(rank, self.presence.begin(rank), self.presence, connection, os.getpid())

    def _act(self, actor: Actor) -> None:
        try:
            actor.act()
        except BaseException as error:
            self.errors.append(error)

    @contextmanager
    def acting(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._act, args=(actor,)) for actor in self.actors]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.learner.finish()
            for thread in threads:
                thread.join(20)
        assert self.errors == []

    def learn(self, updates: int, pause: float = 0.0) -> list[Seen]:
        """Make updates; `pause` makes the learner the slow side."""
        real = impala.update

        def spy(learner: Any, rollout: Any, config: Any, number: int, columns: Any) -> Any:
            time.sleep(pause)
            store, slots = self.store, columns // self.config.envs_per_process
            last = store.last_observations.reshape(-1, *rollout.spaces.observation_shape)[columns]
            names = ("observations", "actions", "log_probs", "rewards", "scaled_rewards", "bootstrap_values")
            self.seen.append(
                Seen(
                    *(getattr(rollout, name)[:, columns].copy() for name in names),
                    last.copy(),
                    store.version[slots].copy(),
                )
            )
            return real(learner, rollout, config, number, columns)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(impala, "update", spy)
            for _ in range(updates):
                update = self.learner.iterate(1e-2)
                self.seen[-1].update = update
                self.parameters.append(self.learner.learner.parameters.detach().clone())
        return self.seen


def config(
    actors: int,
    max_policy_lag: int,
    envs_per_actor: int = 2,
    batch_size: int | None = None,
    normalize_rewards: bool = False,
    **env_kwargs: int,
) -> Config:
    data = {
        "algorithm": "impala",
        "mode": "parallel",
        "env": {
            "id": step_env.ID,
            "num_envs": actors * envs_per_actor,
            "kwargs": {"length": N_STEPS, **env_kwargs},
        },
        "model": {"mlp_sizes": (4,)},
        "training": {
            "n_steps": N_STEPS,
            "batch_size": None if batch_size is None else batch_size * N_STEPS * envs_per_actor,
            "n_epochs": 1,
            "normalize_advantages": False,
            "normalize_rewards": normalize_rewards,
            "gamma": 0.9,
            "optimizer": "rmsprop",
        },
        "impala": {
            "num_actors": actors,
            "num_learners": 1,
            "max_policy_lag": max_policy_lag,
            "actor_nice": 0,
            "check_unwritten": True,
        },
        "logging": {"tensorboard": False},
    }
    return build_config(data, "test")


def steps_by_environment(seen: list[Seen]) -> dict[tuple[float, float], list[float]]:
    """The step numbers that were learned from, in the order of learning, of every environment."""
    steps: dict[tuple[float, float], list[float]] = {}
    for each in seen:
        for i in range(each.rewards.shape[1]):
            column = each.observations[:, i]
            assert (column[:, :2] == column[0, :2]).all()  # one environment's from first to last
            steps.setdefault((column[0, 0], column[0, 1]), []).extend(column[:, 2].tolist())
    return steps


TEAMS = {
    "one actor, no lag": {"actors": 1, "max_policy_lag": 0},
    "two actors, no lag": {"actors": 2, "max_policy_lag": 0},
    "three actors, lag 1, one slow": {"actors": 3, "max_policy_lag": 1, "slow": 1},
    "two actors, lag 4, one slow": {"actors": 2, "max_policy_lag": 4, "slow": 0},
    "batches of one unroll": {"actors": 3, "max_policy_lag": 2, "batch_size": 1},
    "batches of fewer unrolls than actors": {"actors": 3, "max_policy_lag": 1, "batch_size": 2, "slow": 2},
}


@pytest.mark.timeout(60)
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


@pytest.mark.timeout(60)
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


@pytest.mark.timeout(60)
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


@pytest.mark.timeout(60)
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
        assert each.update.figures["impala/policy_lag_max"] == lags.max()
        assert each.update.figures["impala/policy_lag_mean"] == pytest.approx(lags.mean())


@pytest.mark.timeout(60)
def test_with_a_slow_learner_the_lag_is_as_large_as_it_may_be() -> None:
    """Actors then work ahead until every slot is written: the bound is reached, not only kept."""
    ours = Team(2, 3)
    with ours.acting():
        seen = ours.learn(14, pause=0.05)
    for number, each in enumerate(seen[5:], 5):
        assert (number - each.versions == 3).all()


@pytest.mark.timeout(60)
def test_no_actor_gets_further_ahead_of_another_than_the_policy_may_lag() -> None:
    ours = Team(3, 2, slow=2)
    with ours.acting():
        for _ in range(20):
            ours.learn(1)
            begun = ours.store.begun.copy()
            assert begun.max() - begun.min() <= 2 + 1


@pytest.mark.timeout(60)
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


@pytest.mark.timeout(60)
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


@pytest.mark.timeout(60)
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


@pytest.mark.timeout(60)
def test_an_actor_that_leaves_a_cell_unwritten_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Team(2, 1)
    real = ours.actors[1].collector.collect

    def forgetful(part: Any, number: int) -> Any:
        kept = part.rewards[2, 0].copy()
        episodes = real(part, number)
        if number == 3:
            part.rewards[2, 0] = kept
        return episodes

    monkeypatch.setattr(ours.actors[1].collector, "collect", forgetful)
    with ours.acting(), pytest.raises(RunError, match="has cells that its actor did not write"):
        ours.learn(6)
    assert len(ours.seen) == 3


@pytest.mark.timeout(60)
def test_an_unroll_older_than_allowed_is_an_error() -> None:
    ours = Team(1, 1)
    with ours.acting():
        ours.learn(4)
        ours.store.version[:] = 0
        with pytest.raises(RunError, match="updates old"):
            ours.learn(1)


# --- Whole runs ---

EQUAL_KEYS = (
    "timesteps",
    "rollout/episodes",
    "rollout/ep_reward_mean",
    "rollout/ep_length_mean",
    "train/policy_loss",
    "train/value_loss",
    "train/entropy",
    "train/explained_variance",
    "train/grad_norm",
    "train/learning_rate",
)
POLE = (
    *("--env", "CartPole-v1", "--num-envs", 4, "--n-steps", 8, "--total-timesteps", 32 * 20, "--seed", 3),
    *("--set", "logging.tensorboard=false", "--set", "training.lr_schedule=linear"),
    *("--learning-rate", 3e-3, "--num-threads", 1, *of_env(max_episode_steps=15)),  # so that some truncate
)


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequential") / "run"
    assert main("impala", "sequential", False, [*map(str, POLE), "--output-dir", str(folder)]) == 0
    return folder


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("actors", "learners"), [(1, 1), (2, 2), (4, 1)])
def test_without_lag_a_parallel_run_is_the_sequential_run(
    sequential: Path, tmp_path: Path, actors: int, learners: int
) -> None:
    folder = tmp_path / "run"
    result = runs.run(
        SCRIPT, *POLE, "--set", f"impala.num_actors={actors}", "--set", f"impala.num_learners={learners}",
        "--set", "impala.max_policy_lag=0", "--set", "impala.check_unwritten=true", "--output-dir", folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    ours, theirs = runs.rows(folder), runs.rows(sequential)
    assert len(ours) == len(theirs) == 20
    for mine, other in zip(ours, theirs, strict=True):
        for key in EQUAL_KEYS:
            expected = other[key]
            equal = expected if expected is None else pytest.approx(expected, rel=1e-3, abs=2e-5)
            assert mine[key] == equal, (key, mine["update"])
        assert mine["impala/policy_lag_max"] == 0
    torch.testing.assert_close(runs.parameters(folder), runs.parameters(sequential), atol=2e-5, rtol=0)
    performance = runs.record(folder)["performance"]
    assert performance == pytest.approx(runs.record(sequential)["performance"])


@pytest.mark.timeout(120)
def test_a_checkpoint_of_actors_and_learners_can_be_evaluated_and_names_what_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = runs.run(
        SCRIPT, *STEP, *of_env(free=False), "--total-timesteps", 16 * 150, "--learning-rate", 1e-2,
        "--gamma", 0.9, "--output-dir", folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    # the reward of the last step of an unroll, and nothing else, says which action is right
    assert runs.record(folder)["performance"]["final_reward"] > 0.9
    assert runs.record(folder)["total_episodes"] == 600
    checkpoint = folder / "checkpoints" / "impala_parallel_final.pt"
    output = tmp_path / "result.json"
    flags = ("--checkpoint", checkpoint, "--algorithm", "impala", "--num-episodes", 5, "--output", output)
    assert evaluate([*map(str, flags), "--deterministic", "--num-threads", "1"]) == 0
    text = json.dumps(json.loads(output.read_text()))
    assert '"algorithm": "impala"' in text


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("max_policy_lag", "slow"), [(1, "actor-1"), (4, "actor-0")])
def test_whole_runs_with_a_slow_actor_keep_the_bound_and_the_counts(
    tmp_path: Path, max_policy_lag: int, slow: str
) -> None:
    folder = tmp_path / "run"
    result = runs.run(
        SCRIPT, *STEP, *of_env(slow=slow, delay=0.002), "--total-timesteps", 60 * PER_UPDATE,
        "--set", f"impala.max_policy_lag={max_policy_lag}", "--set", "impala.check_unwritten=true",
        "--output-dir", folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    require_exact_counts(folder, 60 * PER_UPDATE)
    for row in runs.rows(folder):
        assert 0 <= row["impala/policy_lag_mean"] <= row["impala/policy_lag_max"] <= max_policy_lag
        assert 0 <= row["impala/rho_clipped_fraction"] <= 1
        assert row["impala/actor_restarts"] == 0
    waits = [
        sum(row[f"profile/{who}_wait_seconds"] for row in runs.rows(folder)) for who in ("actor", "learner")
    ]
    assert min(waits) > 0
    assert runs.processes_of(folder) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raise", "actor 1: environment 2 raised at step 1 of update 1: ValueError: the world ended"),
        ("exit", "actor 1 ended with exit code 7"),
        ("kill", "actor 1 was killed by SIGKILL"),
        ("hang", "actor 1: made no progress for 4 s (parallel.timeout_seconds)"),
    ],
)
def test_an_actor_that_fails_is_replaced_with_a_warning_and_nothing_is_lost(
    tmp_path: Path, kind: str, message: str
) -> None:
    before, folder, marker = runs.shared_files(), tmp_path / "run", tmp_path / "failed"
    result = runs.run(
        SCRIPT, *STEP, *of_env(fault=kind, process="actor-1", at=6, marker=str(marker)),
        "--total-timesteps", 40 * PER_UPDATE, "--set", "impala.check_unwritten=true",
        "--set", f"parallel.timeout_seconds={4 if kind == 'hang' else 60}", "--output-dir", folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert marker.exists()
    assert f"{message}; replaced by a new one (1 of 3: impala.max_actor_restarts)" in result.stderr
    assert "Traceback" not in result.stderr
    require_exact_counts(folder, 40 * PER_UPDATE)
    rows = runs.rows(folder)
    restarts = [row["impala/actor_restarts"] for row in rows]
    assert restarts == sorted(restarts)
    assert restarts[-1] == 1
    for row in rows:
        assert row["impala/policy_lag_max"] <= 2
        for key in (key for key in row if key.startswith("profile/")):
            assert row[key] >= 0, key  # a new actor's time begins at nothing, not below
    assert runs.processes_of(folder) == []
    assert left_in_shared_memory(before) == set()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "restarts"), [("raise", 1), ("exit", 0)])
def test_more_deaths_than_allowed_end_the_run_with_the_actors_own_error(
    tmp_path: Path, kind: str, restarts: int
) -> None:
    before, folder = runs.shared_files(), tmp_path / "run"
    started = time.monotonic()
    result = runs.run(
        SCRIPT, *STEP, *of_env(fault=kind, process="actor-1", at=61), "--total-timesteps", 1e7,
        "--set", f"impala.max_actor_restarts={restarts}", "--output-dir", folder,
    )  # fmt: skip
    assert time.monotonic() - started < 60
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert ("actor 1: environment 2 raised" if kind == "raise" else "actor 1 ended with exit code 7") in last
    assert ("impala.max_actor_restarts" in last) == (restarts > 0)
    assert result.stderr.count("replaced by a new one") == restarts
    record = runs.record(folder)
    assert record["status"] == "failed"
    assert record["total_timesteps"] == runs.rows(folder)[-1]["timesteps"]
    assert runs.processes_of(folder) == []
    assert left_in_shared_memory(before) == set()


def children(process: Any) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The learners and the actors of a run, which are nicer, in the order in which they were started."""
    found = sorted(runs.worker_origin(process.pid).children(), key=lambda child: child.create_time())
    own = os.nice(0)
    return [each for each in found if each.nice() == own], [each for each in found if each.nice() > own]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("learners", "victim"), [(1, 0), (2, 1)])
def test_a_learner_that_dies_ends_the_run(tmp_path: Path, learners: int, victim: int) -> None:
    before, folder = runs.shared_files(), tmp_path / "run"
    process = runs.start(
        SCRIPT, *STEP, "--set", f"impala.num_learners={learners}", *of_env(slow="all", delay=0.002),
        "--total-timesteps", 1e7, "--output-dir", folder, env={**os.environ, "RUN": str(folder)},
    )  # fmt: skip
    runs.wait_for_rows(folder, 3)
    found, actors = children(process)
    assert (len(found), len(actors)) == (learners, 2)
    found[victim].kill()
    started = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - started < 30
    assert process.returncode == 1
    assert f"learner {victim} was killed by SIGKILL" in errors.splitlines()[-1]
    assert "replaced" not in errors
    assert runs.record(folder)["status"] == "failed"
    assert runs.processes_of(folder) == []
    assert left_in_shared_memory(before) == set()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("learners", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_a_signal_ends_the_run_safely_and_the_same_command_resumes_it(
    tmp_path: Path, learners: int, number: signal.Signals
) -> None:
    before, folder = runs.shared_files(), tmp_path / "run"
    flags = (*STEP, "--set", f"impala.num_learners={learners}", *of_env(slow="all", delay=0.002))
    process = runs.start(SCRIPT, *flags, "--total-timesteps", 1e7, "--output-dir", folder)
    runs.wait_for_rows(folder, 3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number, errors
    record = runs.record(folder)
    assert record["status"] == "interrupted"
    assert record["total_timesteps"] == runs.rows(folder)[-1]["timesteps"]
    assert runs.processes_of(folder) == []
    assert left_in_shared_memory(before) == set()

    more = record["total_timesteps"] + 20 * PER_UPDATE
    result = runs.run(SCRIPT, "--resume", "--total-timesteps", more, "--output-dir", folder)
    assert result.returncode == 0, result.stderr
    require_exact_counts(folder, more)


@pytest.mark.timeout(120)
def test_actors_and_learners_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    before, folder = runs.shared_files(), tmp_path / "run"
    process = runs.start(
        SCRIPT, *STEP, *of_env(slow="all", delay=0.002), "--total-timesteps", 1e7,
        "--output-dir", folder, env={**os.environ, "RUN": str(folder)},
    )  # fmt: skip
    runs.wait_for_rows(folder, 1)
    assert len(runs.processes_of(folder)) >= 4
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while runs.processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert runs.processes_of(folder) == []
    assert left_in_shared_memory(before) == set()


# --- Wrong settings ---

WRONG = {
    "a batch that is no whole unrolls": (
        ("--batch-size", 12),
        ("training.batch_size = 12", "multiple of an unroll", "= 8"),
    ),
    "workers": (("--num-workers", 2), ("--num-workers 2", "--num-actors")),
    "workers as a setting": (
        ("--set", "parallel.num_workers=2"),
        ("parallel.num_workers = 2", "impala.num_actors"),
    ),
    "normalised advantages": (
        ("--set", "training.normalize_advantages=true"),
        ("training.normalize_advantages = true", "set it to false"),
    ),
    "environments that cannot be shared out": (
        ("--num-envs", 5),
        ("env.num_envs = 5", "multiple of impala.num_actors = 2"),
    ),
    "no actor": (("--set", "impala.num_actors=0"), ("impala.num_actors = 0", "greater than or equal to 1")),
    "negative lag": (
        ("--set", "impala.max_policy_lag=-1"),
        ("impala.max_policy_lag = -1", "greater than or equal to 0"),
    ),
    "epochs": (("--n-epochs", 2), ("training.n_epochs = 2", "must be 1")),
    "a threshold of nothing": (
        ("--set", "impala.vtrace_clip_rho_threshold=0"),
        ("impala.vtrace_clip_rho_threshold = 0", "greater than 0"),
    ),
    "a setting of PPO": (("--set", "training.clip_range=0.1"), ("training.clip_range = 0.1", "only PPO")),
}


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[object, ...],
    words: tuple[str, ...],
) -> None:
    folder = tmp_path / "run"
    arguments = [*map(str, (*STEP, *flags)), "--output-dir", str(folder)]
    assert main("impala", "parallel", False, arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Traceback" not in error
    for word in words:
        assert word in error
    assert not folder.exists()


def test_actors_and_their_environments_can_be_given_as_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shown by what is refused: 2 actors of 3 environments are not 4 environments."""
    flags = (*STEP[:2], "--num-actors", 2, "--num-envs-per-actor", 3, "--num-envs", 4)
    arguments = [*map(str, flags), "--output-dir", str(tmp_path / "run")]
    assert main("impala", "parallel", False, arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "contradicts --num-envs 4" in error


def test_more_slots_than_a_queue_holds_are_a_usage_error_that_says_how_many() -> None:
    spaces = Spaces((3,), "float32", 2)
    assert store_size(config(4, 255), spaces).slots == 1024
    with pytest.raises(UsageError, match=r"impala\.max_policy_lag = 256 needs 1028 slots.*1024"):
        store_size(config(4, 256), spaces)


@pytest.mark.parametrize(
    ("change", "slots"),
    [((2, 0), 2), ((2, 4), 10), ((3, 1, 2, 5), 10)],
    ids=["one batch", "five batches", "a batch of five unrolls"],
)
def test_there_are_as_many_batches_of_slots_as_the_lag_needs(change: tuple[int, ...], slots: int) -> None:
    size: Callable[..., Config] = config
    assert store_size(size(*change), Spaces((3,), "float32", 2)).slots == slots


@pytest.mark.timeout(60)
def test_an_environment_that_an_actor_cannot_make_is_a_usage_error_and_leaves_nothing(tmp_path: Path) -> None:
    result = runs.run(
        SCRIPT, "--env", "tests.fault_env:Fault-v0", *STEP[2:], *of_env(fault="make", process="actor-1"),
        "--total-timesteps", 100, "--output-dir", tmp_path / "run",
    )  # fmt: skip
    assert result.returncode == 2
    assert "no such world" in result.stderr.splitlines()[-1]
    assert "replaced" not in result.stderr
    assert not (tmp_path / "run").exists()
