"""How many actors and learners a machine gets: what is tried, what is chosen, what is kept of it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.errors import UsageError
from rlcb.parallel import calibration
from rlcb.parallel.calibration import (
    Calibration,
    calibrate,
    candidates,
    fastest_split,
    seconds_of,
    with_split_of,
)
from rlcb.paths import default_config_path
from tests import runs, step_env

MS = 1e-3


def config(
    num_envs: int = 32,
    n_steps: int = 16,
    batch_size: int | None = None,
    group_size: int | None = None,
    num_actors: int | None = None,
    num_learners: int | None = None,
    mode: str = "parallel",
) -> Config:
    data = {
        "algorithm": "impala",
        "mode": mode,
        "env": {"id": step_env.ID, "num_envs": num_envs, "group_size": group_size},
        "training": {
            "n_steps": n_steps,
            "batch_size": batch_size,
            "n_epochs": 1,
            "normalize_advantages": False,
        },
        "impala": {"num_actors": num_actors, "num_learners": num_learners},
    }
    return build_config(data, "test")


# --- Which numbers of actors are tried ---


@pytest.mark.parametrize(
    ("cores", "settings", "expected"),
    [
        # The divisors of the environments: the next one above the cores, then those below, most first.
        (2, {}, [4, 2, 1]),
        (4, {}, [8, 4, 2]),
        (6, {}, [8, 4, 2]),
        (1, {}, [2, 1]),
        (4, {"num_envs": 30}, [5, 3, 2]),
        # Never above twice the cores, nor above the environments.
        (4, {"num_envs": 7}, [7, 1]),
        (3, {"num_envs": 7}, [1]),
        (8, {"num_envs": 3}, [3, 1]),
        # Actors can share a group of environments, so its size does not matter.
        (4, {"group_size": 8}, [8, 4, 2]),
        (4, {"group_size": 32}, [8, 4, 2]),
        # A batch is whole unrolls: half of what all environments bring is not one of a single actor.
        (2, {"batch_size": 256}, [4, 2]),
        (2, {"batch_size": 128}, [4]),
        # What is given is not tried.
        (2, {"num_actors": 16}, [16]),
    ],
)
def test_the_numbers_of_actors_that_are_tried(
    cores: int, settings: dict[str, int], expected: list[int]
) -> None:
    assert candidates(config(**settings), cores) == expected


def test_where_no_number_of_actors_fits_the_batch_is_what_is_refused() -> None:
    """6 environments of 4 steps: unrolls of 24, 12, 8 or 4 timesteps, of which none divides 10."""
    assert candidates(config(6, 4, batch_size=10), 4) == [1]
    with pytest.raises(UsageError, match=r"training\.batch_size = 10 must be a multiple of an unroll"):
        config(6, 4, batch_size=10, num_actors=1)


# --- Which split is taken ---

EQUAL = {8: 0.1 * MS, 16: 0.1 * MS, 32: 0.1 * MS}  # environments of an actor: acting costs the same
BATCHED = {8: 0.14 * MS, 16: 0.1 * MS, 32: 0.06 * MS}  # ... or less with more of them


@pytest.mark.parametrize(
    ("cores", "act", "learn", "microbatch", "expected", "fps"),
    [
        # A core each: the slower side decides, 0.1 ms. 2 and 2 in turns are as fast, 0.05 + 0.05, but more.
        (2, EQUAL, 0.1 * MS, 64, (1, 1), 10_000),
        # In turns on both cores, 0.05 + 0.15 ms; a core each is 0.3 ms.
        (2, EQUAL, 0.3 * MS, 64, (2, 2), 5_000),
        # Both cores act with 16 environments each: 0.05 + 0.15; one actor of 32 would be 0.06 + 0.15, four of
        # 8 0.07 + 0.15.
        (2, BATCHED, 0.3 * MS, 64, (2, 2), 5_000),
        # With 32 environments acting is so cheap that one core does: 0.02 + 0.15 instead of 0.05 + 0.15.
        (2, {**BATCHED, 32: 0.02 * MS}, 0.3 * MS, 64, (1, 2), 1 / (0.17 * MS)),
        # 512 samples are one microbatch, so there is one learner: 0.3 ms, against 0.05 + 0.3 with two actors.
        (2, EQUAL, 0.3 * MS, 512, (1, 1), 1 / (0.3 * MS)),
        # Four actors on two cores, 0.045 + 0.15, are not 5 % faster than two, 0.05 + 0.15.
        (2, {8: 0.09 * MS, 16: 0.1 * MS, 32: 0.1 * MS}, 0.3 * MS, 64, (2, 2), 5_000),
        (2, {8: 0.05 * MS, 16: 0.1 * MS, 32: 0.1 * MS}, 0.3 * MS, 64, (4, 2), 1 / (0.175 * MS)),
        # Four cores: three learners keep up with an actor, 0.1 ms each, as 4 and 4 in turns would.
        (4, EQUAL, 0.3 * MS, 64, (1, 3), 10_000),
    ],
)
def test_the_split_that_the_times_predict_to_be_fastest(
    cores: int,
    act: dict[int, float],
    learn: float,
    microbatch: int,
    expected: tuple[int, int],
    fps: float,
) -> None:
    chosen = fastest_split(config(), cores, act, learn, microbatch)
    assert (chosen.num_actors, chosen.num_learners) == expected
    assert chosen.timesteps_per_second == pytest.approx(fps)
    assert (chosen.cores, chosen.act_seconds, chosen.learn_seconds) == (cores, act, learn)
    assert chosen.limit == pytest.approx(cores / (act[32 // expected[0]] + learn))


def test_a_number_of_learners_that_is_given_is_kept() -> None:
    """3 learners on 2 cores: 0.1 / 2 + 0.3 / 2 ms, as 2 would make."""
    chosen = fastest_split(config(num_learners=3), 2, EQUAL, 0.3 * MS, 64)
    assert (chosen.num_actors, chosen.num_learners) == (2, 3)
    assert chosen.chosen == ["num_actors"]
    assert chosen.timesteps_per_second == pytest.approx(5_000)


def test_what_is_printed_names_the_times_and_the_split() -> None:
    chosen = fastest_split(config(num_learners=1), 2, BATCHED, 0.3 * MS, 64)
    assert chosen.describe() == (
        "a timestep takes a core 0.300 ms to learn from and to act 0.140 with 8, 0.100 with 16, "
        "0.060 with 32 environments: 1 actor, 1 learner, about 3,333 timesteps/s"
    )


def test_what_is_kept_in_a_checkpoint_is_the_calibration() -> None:
    chosen = fastest_split(config(), 2, BATCHED, 0.3 * MS, 64)
    assert Calibration.from_dict(chosen.to_dict()) == chosen
    assert Calibration.from_dict(None) is None


# --- Measuring ---


class FakeMeasurers:
    """Two processes that would measure; what they are asked, and answers from a table."""

    asked: list[tuple[Any, ...]]
    size: int

    def __init__(self, count: int, *_: Any) -> None:
        assert count == 2
        FakeMeasurers.asked = []

    def __enter__(self) -> FakeMeasurers:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        self.asked.append((name, *arguments))
        if name == "begin":
            (self.size,) = arguments
            return [None, None]
        if name == "prepare_learning":
            return [64, 64]
        # The first pass over the sizes meets another program that computes, while 16 environments are timed.
        disturbed = self.size == 16 and self.asked.count(("begin", 16)) == 1
        act = BATCHED.get(self.size, 0.0) * (10 if disturbed else 1)
        mean = {"act": act, "learn": 0.3 * MS}[name]
        return [0.5 * mean, 1.5 * mean]


def test_a_calibration_measures_each_size_twice_takes_the_faster_time_and_fills_in_what_was_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration, "Measurers", FakeMeasurers)
    monkeypatch.setattr(calibration.cpu, "usable_cores", lambda: 2)
    found, chosen = calibrate(config(), lambda: None)
    sizes = [each for size in (8, 16, 32) for each in (("begin", size), ("act",))]
    assert FakeMeasurers.asked == [*sizes, *sizes, ("prepare_learning",), ("learn",)]
    assert chosen.act_seconds == pytest.approx(BATCHED)
    assert chosen.learn_seconds == pytest.approx(0.3 * MS)
    assert (found.impala.num_actors, found.impala.num_learners) == (2, 2)
    assert chosen.chosen == ["num_actors", "num_learners"]
    assert found.envs_per_process == 16


def test_the_first_call_is_not_timed_and_others_are_counted_until_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, seen = [0.0], []

    def work(number: int) -> None:
        seen.append(number)
        now[0] += 0.25 if number else 100.0

    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert seconds_of(work, 0.6) == 0.25
    assert seen == [0, 1, 2, 3]
    assert seconds_of(work, 0.0) == 0.25  # one call at least


# --- Runs ---


def test_a_run_that_goes_on_keeps_the_split_that_it_had_where_it_is_open() -> None:
    before = config(num_actors=4, num_learners=2)
    assert with_split_of(config(), before) == before
    assert with_split_of(config(num_learners=1), before) == config(num_actors=4, num_learners=1)
    assert with_split_of(config(mode="sequential"), before) == config(mode="sequential")


# Actors that are far ahead of a learner that takes one column at a time.
SCRIPT = "train_impala_parallel.py"
OPEN = (
    *("--env", step_env.ID, "--num-envs", 16, "--n-steps", 2),
    *("--set", "impala.num_learners=1", "--set", "impala.actor_nice=0"),
    *("--set", "hardware.microbatch_size=1", "--set", "logging.tensorboard=false"),
)


@pytest.mark.timeout(300)
def test_a_run_finds_its_actors_by_itself_says_who_waited_and_keeps_what_it_measured(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = runs.call(SCRIPT, *OPEN, "--total-timesteps", 32 * 60, "--output-dir", folder)
    assert result.returncode == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "Measuring how many actors and learners suit this machine" in said
    first = runs.record(folder)
    actors, measured = first["config"]["impala"]["num_actors"], first["impala"]["calibration"]
    assert (measured["num_actors"], measured["num_learners"]) == (actors, 1)
    tried = [16 // int(size) for size in measured["act_seconds"]]
    assert tried == candidates(config(16, 2, num_learners=1), measured["cores"])

    def predicted(actors: int) -> float:
        act = measured["act_seconds"][str(16 // actors)] / min(actors, measured["cores"])
        learn = measured["learn_seconds"]
        return 1 / (act + learn if actors + 1 > measured["cores"] else max(act, learn))

    assert predicted(actors) == max(predicted(count) for count in tried)
    assert measured["timesteps_per_second"] == pytest.approx(predicted(actors))
    assert f"about {measured['timesteps_per_second']:,.0f} timesteps/s" in said
    for line in (f"Actors:             {actors}", "Learners:           1", "Total environments: 16"):
        assert line in result.stdout
    assert re.search(
        r"Who waited: learner-bound: actors waited \d+% of the time \(learners \d+%\); fewer actors or a "
        "larger batch would help",
        said,
    )

    file = ("--config", default_config_path("impala", "parallel"))  # which leaves the actors open
    result = runs.call(SCRIPT, *OPEN, *file, "--resume", "--total-timesteps", 32 * 80, "--output-dir", folder)
    assert result.returncode == 0, result.stderr
    assert "Measuring" not in result.stdout
    second = runs.record(folder)
    assert second["total_timesteps"] == 32 * 80
    assert second["config"]["impala"] == first["config"]["impala"]
    assert second["impala"]["calibration"] == measured
