"""Nodes that learn by themselves choose from a measurement after how many updates they average."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from rlcb.config.settings import ClusterConfig
from rlcb.config.yaml_file import build_config
from rlcb.errors import UsageError
from rlcb.rl.communicator import Communicator
from rlcb.training.averaging import MEASURED, AverageSchedule, fewest_updates
from rlcb.training.run import BETWEEN_SECONDS, Loop


class Clock:
    """A clock that only moves when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Learner:
    """Takes the seconds of `costs`, one after another, to average."""

    def __init__(self, clock: Clock, costs: list[float]) -> None:
        self.clock, self.costs = clock, iter(costs)
        self.averages = 0

    def average(self, communicator: Communicator) -> None:
        self.clock.now += next(self.costs)
        self.averages += 1


def smallest(average: float, update: float) -> int:
    """The same by trying one number after another, in exact fractions."""
    sums, compute, every = Fraction(average), Fraction(update), 1
    while sums / (every * compute + sums) >= Fraction(1, 10):
        every += 1
    return every


@pytest.mark.parametrize(
    ("average", "update"),
    [(0.001, 1.0), (0.125, 1.0), (1.0, 9.0), (0.5, 2.25), (2.0, 1.0), (0.75, 0.25), (600.0, 0.5), (0.0, 1.0)],
)
def test_the_smallest_number_keeps_averages_below_a_tenth_of_the_time(average: float, update: float) -> None:
    assert fewest_updates(average, update) == smallest(average, update)


def simulate(
    communicator: Communicator, updates: list[float], averages: list[float]
) -> tuple[AverageSchedule, list[int], list[str]]:
    """Let updates take these seconds; return the schedule, the updates after which it averaged, and lines."""
    clock = Clock()
    schedule, learner = AverageSchedule("auto", communicator, clock), Learner(clock, averages)
    averaged, lines = [], []
    for number, seconds in enumerate(updates, 1):
        clock.now += seconds
        if schedule.due(number):
            averaged.append(number)
            line = schedule.average(learner, number)  # type: ignore[arg-type]
            lines += [line] if line is not None else []
    return schedule, averaged, lines


def test_the_medians_of_the_first_updates_decide_without_the_very_first() -> None:
    updates, averages = [50.0, 2.0, 8.0, 4.0, *[4.0] * 10], [90.0, 3.0, 1.0, 2.0, *[2.0] * 10]
    schedule, averaged, lines = simulate(Communicator(), updates, averages)
    every = smallest(2.0, 4.0)
    assert (schedule.every, every) == (5, 5)
    assert averaged == [1, 2, 3, 4, 9, 14]
    assert lines == ["averages of the nodes every 5 updates (measured: an average 2 s, an update 4 s)"]
    assert schedule.metrics() == {
        "averages": {"every": 5, "after_update": 4, "average_seconds": 2.0, "update_seconds": 4.0}
    }


def test_slow_averages_do_not_make_nodes_learn_alone_for_long() -> None:
    schedule, averaged, lines = simulate(Communicator(), [1.0] * 25, [40.0] * 25)
    assert (schedule.every, smallest(40.0, 1.0)) == (10, 361)
    assert averaged == [1, 2, 3, 4, 14, 24]
    assert lines == [
        "averages of the nodes every 10 updates (measured: an average 40 s, an update 1 s; "
        "361 would take a tenth of the time, but nodes would drift)"
    ]


def test_the_line_and_the_choice_come_from_the_same_rounded_seconds() -> None:
    average = 1 - 4e-7  # unrounded, one update would be enough
    schedule, _, lines = simulate(Communicator(), [9.0] * 6, [average] * 6)
    assert (schedule.every, smallest(average, 9.0), smallest(1.0, 9.0)) == (2, 1, 2)
    assert lines == ["averages of the nodes every 2 updates (measured: an average 1 s, an update 9 s)"]


def test_all_ranks_take_the_number_of_rank_0(
    run_ranks: Callable[[int, Callable[[Communicator], Any]], list[Any]],
) -> None:
    def work(communicator: Communicator) -> Any:
        slower = 1.0 + communicator.rank  # their own clocks would tell other numbers
        schedule, averaged, _ = simulate(communicator, [1.0] * 12, [slower] * 12)
        return schedule.state(), averaged

    first, *others = run_ranks(3, work)
    assert first[0]["every"] == smallest(1.0, 1.0) == 10
    assert all(other == first for other in others)


def test_a_resumed_run_keeps_the_number_and_counts_on() -> None:
    before, _, _ = simulate(Communicator(), [1.0] * 6, [0.25] * 6)
    after = AverageSchedule("auto", Communicator(), Clock())
    after.load(before.state())
    assert after.every == before.every == smallest(0.25, 1.0) == 3
    assert [number for number in range(5, 14) if after.due(number)] == [7, 10, 13]
    assert after.describe() == before.describe()


def test_a_run_that_was_resumed_before_the_choice_measures_anew() -> None:
    before, averaged, _ = simulate(Communicator(), [1.0] * MEASURED, [1.0] * MEASURED)
    assert (before.every, averaged) == (None, [1, 2, 3])
    assert before.metrics()["averages"]["every"] is None
    after = AverageSchedule("auto", Communicator(), Clock())
    after.load(before.state())
    assert after.every is None


def test_a_fixed_number_is_not_measured() -> None:
    schedule = AverageSchedule(4, Communicator(), Clock())
    assert [number for number in range(10) if schedule.due(number)] == [0, 4, 8]
    assert schedule.describe() == "averages of the nodes every 4 updates"
    assert schedule.metrics() == {}


@pytest.mark.parametrize("value", [0, -1, 1.5, "often", True, [1]])
def test_other_values_are_refused_in_one_line(value: Any) -> None:
    data = {"algorithm": "a2c", "mode": "distributed", "cluster": {"average_every": value}}
    with pytest.raises(UsageError) as refused:
        build_config(data, "test")
    text = str(refused.value)
    assert f"cluster.average_every = {value!r}: must be a whole number of at least 1, or auto" in text
    assert text.count("average_every") == 1


def test_counts_in_other_forms_are_taken() -> None:
    assert ClusterConfig.model_validate({"average_every": 2e1}).average_every == 20
    assert ClusterConfig.model_validate({"average_every": "auto"}).average_every == "auto"


@pytest.mark.parametrize(
    ("seconds", "every", "expected"),
    [
        (1.0, 1, [False] * 9 + [True]),
        (2.0, 1, [True] * 10),
        (2.0, 4, [False, False, False, True, False, False, False, True, False, True]),
        (2.0 + BETWEEN_SECONDS, 4, [True] * 10),
        (float("inf"), 4, [True] * 10),
    ],
)
def test_the_state_is_taken_when_nodes_average_unless_that_takes_too_long(
    seconds: float, every: int, expected: list[bool]
) -> None:
    """Every tenth update writes a checkpoint, and copies of the state are due after two seconds."""
    due = SimpleNamespace(checkpoint_interval=10, snapshot_seconds=2.0)
    schedule = AverageSchedule(every, Communicator())
    for update, is_taken in enumerate(expected, 1):
        trainer = SimpleNamespace(
            counters=SimpleNamespace(updates=update - 1), nodes_agree_after=schedule.due
        )
        spec: Any = SimpleNamespace(config=SimpleNamespace(logging=due))
        loop = Loop(spec, trainer, None, *[None] * 3)  # type: ignore[arg-type]
        assert loop._state_due(seconds) == is_taken, update
