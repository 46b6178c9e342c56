"""Runs are grouped by configuration, and labels name the differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcb.comparison.groups import Group, find_baseline, group_runs, parts_of
from rlcb.comparison.runs import Run, load_run
from rlcb.errors import UsageError
from tests.comparison_run_folders import line, write_run


@pytest.fixture
def make(tmp_path: Path) -> Any:
    count = 0

    def run(*arguments: Any, place: int = 0, **changes: Any) -> tuple[int, Run]:
        nonlocal count
        count += 1
        return place, load_run(
            write_run(tmp_path / f"run{count}", line(5, 6, 1000, 10), *arguments, **changes)
        )

    return run


def shape(groups: list[Group]) -> list[tuple[str, str, list[int | None]]]:
    return [(group.label, group.game, [run.seed for run in group.runs]) for group in groups]


def test_seeds_of_one_configuration_are_a_group(make: Any) -> None:
    runs = [
        make("ppo", "parallel", seed=2),
        make("ppo", "sequential", seed=3),
        make("ppo", "sequential", seed=1),
    ]
    assert shape(group_runs(runs)) == [
        ("PPO sequential", "coinrun", [1, 3]),
        ("PPO parallel", "coinrun", [2]),
    ]


def test_folders_of_files_do_not_separate_groups(make: Any) -> None:
    runs = [
        make(seed=1),
        make(seed=2, settings={"logging.checkpoint_dir": "/a", "parallel.buffer_dir": "/b"}),
    ]
    assert len(group_runs(runs)) == 1


def test_runs_that_other_hosts_joined_are_groups_of_their_own(make: Any) -> None:
    """A port to join at makes no difference by itself; actors that came through it do."""
    port = {
        "impala.actor_port": 29600,
        "impala.max_remote_actors": 8,
        "impala.compress_unrolls": "never",
    }

    def impala(seed: int, hosts: int | None) -> tuple[int, Run]:
        record = None if hosts is None else {"impala": {"remote": {"other_hosts": hosts}}}
        return make(
            "impala", "parallel", seed=seed, settings=port if hosts is not None else None, record=record
        )

    runs = [impala(1, None), impala(2, 0), impala(3, 1), impala(4, 2)]
    assert shape(group_runs(runs)) == [
        ("IMPALA parallel, 0 joined hosts", "coinrun", [1, 2]),
        ("IMPALA parallel, 1 joined host", "coinrun", [3]),
        ("IMPALA parallel, 2 joined hosts", "coinrun", [4]),
    ]


def chosen(**numbers: int) -> dict[str, Any]:
    """What a run of IMPALA has if a measurement chose these settings."""
    settings = {f"impala.{key}": number for key, number in numbers.items()}
    return {"settings": settings, "record": {"impala": {"calibration": {"chosen": list(numbers)}}}}


def test_numbers_of_processes_that_a_measurement_chose_do_not_separate_seeds(make: Any) -> None:
    given = {"settings": {"impala.num_actors": 4, "impala.num_learners": 2}}
    runs = [
        make("impala", "parallel", seed=1, **chosen(num_actors=2, num_learners=2)),
        make("impala", "parallel", seed=2, **chosen(num_actors=4, num_learners=2)),
        make("impala", "parallel", seed=1, **given),
    ]
    assert shape(group_runs(runs)) == [
        ("IMPALA parallel, auto actors", "coinrun", [1, 2]),
        ("IMPALA parallel, 4 actors", "coinrun", [1]),
    ]
    assert shape(group_runs(runs[:2])) == [("IMPALA parallel", "coinrun", [1, 2])]


def test_elastic_runs_are_named(make: Any) -> None:
    elastic = {"cluster.elastic": True}
    runs = [make("impala", "distributed", seed=1), make("impala", "distributed", seed=1, settings=elastic)]
    assert [group.label for group in group_runs(runs)] == [
        *("IMPALA distributed, not elastic", "IMPALA distributed, elastic"),
    ]


def test_games_of_one_variant_have_one_label(make: Any) -> None:
    runs = [make(seed=1), make(env="procgen-maze-v0", seed=1)]
    assert shape(group_runs(runs)) == [("PPO sequential", "coinrun", [1]), ("PPO sequential", "maze", [1])]


def test_labels_by_what_differs(make: Any) -> None:
    runs = [
        make(seed=1),
        make(seed=1, settings={"env.num_envs": 128, "training.n_steps": 128}),
        make("a2c", seed=1),
    ]
    labels = [group.label for group in group_runs(runs)]
    # n_steps differs exactly where num_envs does, so it says nothing more.
    assert labels == ["PPO sequential, 64 envs", "PPO sequential, 128 envs", "A2C sequential"]


def test_order_of_the_command_line_then_of_algorithm_and_mode(make: Any) -> None:
    runs = [
        make("impala", "parallel", place=1, seed=1),
        make("ppo", "distributed", place=1, seed=1),
        make("ppo", "sequential", place=1, seed=1),
        make("a3c", "parallel", place=0, seed=1),
    ]
    labels = [group.label for group in group_runs(runs)]
    assert labels == ["A3C parallel", "PPO sequential", "PPO distributed", "IMPALA parallel"]


def test_one_seed_on_two_machines_is_two_groups(make: Any) -> None:
    runs = [make(seed=1), make(seed=1, record={"hardware.cpu_model": "Other CPU"})]
    labels = [group.label for group in group_runs(runs)]
    assert labels == ["PPO sequential, Test CPU, 2 cores", "PPO sequential, Other CPU, 2 cores"]


def test_two_seeds_on_two_machines_are_one_group(make: Any) -> None:
    runs = [make(seed=1), make(seed=2, record={"hardware.cpu_model": "Other CPU"})]
    assert shape(group_runs(runs)) == [("PPO sequential", "coinrun", [1, 2])]


def test_repeated_seed_on_one_machine_stays_one_group(make: Any) -> None:
    assert shape(group_runs([make(seed=1), make(seed=1)])) == [("PPO sequential", "coinrun", [1, 1])]


@pytest.mark.parametrize(
    ("wanted", "label"),
    [
        (None, "PPO sequential"),
        ("ppo_parallel", "PPO parallel"),
        ("PPO Sequential", "PPO sequential"),
        ("impala", "IMPALA parallel"),
    ],
)
def test_baseline(make: Any, wanted: str | None, label: str) -> None:
    groups = group_runs([make(), make("ppo", "parallel"), make("impala", "parallel")])
    assert find_baseline(groups, wanted) == label


def test_baseline_by_folder(make: Any) -> None:
    groups = group_runs([make(), make("ppo", "parallel")])
    assert find_baseline(groups, str(groups[1].runs[0].path)) == "PPO parallel"


@pytest.mark.parametrize("wanted", ["ppo", "dqn"])
def test_baseline_that_matches_no_group_or_several_is_rejected(make: Any, wanted: str) -> None:
    groups = group_runs([make(), make("ppo", "parallel")])
    with pytest.raises(UsageError, match="PPO sequential; PPO parallel"):
        find_baseline(groups, wanted)


class TestParts:
    def shape(self, groups: list[Group]) -> list[tuple[str, str, list[str]]]:
        return [(part.key, part.name, [group.label for group in part.groups]) for part in parts_of(groups)]

    def test_each_game_is_a_part(self, make: Any) -> None:
        groups = group_runs(
            [make(), make(mode="parallel"), make(env="procgen-maze-v0"), make(env="CartPole-v1")]
        )
        assert self.shape(groups) == [
            ("procgen-coinrun-v0", "coinrun", ["PPO sequential", "PPO parallel"]),
            ("procgen-maze-v0", "maze", ["PPO sequential"]),
            ("CartPole-v1", "CartPole-v1", ["PPO sequential"]),
        ]

    def test_each_mode_of_a_game_is_a_part_easy_first(self, make: Any) -> None:
        hard = {"settings": {"env.distribution_mode": "hard"}}
        groups = group_runs([make("a2c", **hard), make("impala"), make("impala", **hard)])
        assert self.shape(groups) == [
            ("procgen-coinrun-v0", "coinrun easy", ["IMPALA sequential, easy"]),
            ("procgen-coinrun-v0 hard", "coinrun hard", ["A2C sequential", "IMPALA sequential, hard"]),
        ]

    def test_names_have_no_mode_if_there_is_only_one(self, make: Any) -> None:
        groups = group_runs([make(settings={"env.distribution_mode": "hard"})])
        assert self.shape(groups) == [("procgen-coinrun-v0", "coinrun", ["PPO sequential"])]
