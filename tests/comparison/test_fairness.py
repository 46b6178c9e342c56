"""Every difference between runs is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcb.comparison.fairness import differences
from rlcb.comparison.groups import group_runs
from rlcb.comparison.lost import LostRun
from rlcb.comparison.runs import load_run
from tests.comparison_run_folders import evaluation, line, write_run


@pytest.fixture
def compare(tmp_path: Path) -> Any:
    """Differences between a sequential run as it is and a parallel one with changes, by aspect."""

    def found(**changes: Any) -> dict[str, str]:
        rows = changes.pop("rows", line(1, 2, 1000, 100))
        changes = {"mode": "parallel", "seed": 1, **changes}
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        a = write_run(folder / "a", line(1, 2, 1000, 100), seed=1)
        b = write_run(folder / "b", rows, **changes)
        groups = group_runs([(0, load_run(a)), (0, load_run(b))])
        texts: dict[str, str] = {}
        for each in differences(groups):
            texts[each.aspect] = f"{texts.get(each.aspect, '')}{each.text}\n"
        return texts

    return found


def test_runs_that_differ_in_mode_only_have_no_difference(compare: Any) -> None:
    assert compare() == {}
    assert compare(settings={"parallel.num_workers": 2}) == {}
    one_node = {"cluster.num_nodes": 1, "cluster.compression": "none", "cluster.overlap": False}
    assert compare(mode="distributed", settings=one_node) == {}


@pytest.mark.parametrize(
    ("aspect", "changes", "text"),
    [
        (
            "levels",
            {"settings": {"env.num_levels": 0}},
            "num_levels: 200 in PPO sequential; 0 in PPO parallel",
        ),
        ("levels", {"settings": {"env.distribution_mode": "hard"}}, "distribution_mode: easy"),
        (
            "environment",
            {"settings": {"env.wrappers": ["mine:Scaled"]}},
            'wrappers: [] in PPO sequential; ["mine:Scaled"] in PPO parallel',
        ),
        ("environment", {"settings": {"env.preprocessing": False}}, "preprocessing: True in PPO sequential"),
        ("environment", {"settings": {"env.kwargs": {"length": 3}}}, "kwargs.length: none in PPO sequential"),
        (
            "environment",
            {"settings": {"env.atari": {"frame_skip": 2, "noop_max": 30}}},
            "atari.frame_skip: 4 in PPO sequential; 2 in PPO parallel",
        ),
        ("levels", {"settings": {"env.procgen.use_backgrounds": False}}, "use_backgrounds: True"),
        ("network", {"settings": {"model.architecture": "nature"}}, "architecture: impala in PPO sequential"),
        ("network", {"settings": {"model.impala_channels": [32, 64, 64]}}, "impala_channels: [16, 32, 32]"),
        (
            "total environments",
            {"settings": {"env.num_envs": 128}},
            "num_envs: 64 in PPO sequential; 128 in PPO",
        ),
        (
            "hyperparameters",
            {"settings": {"training.learning_rate": 1e-4}},
            "learning_rate: 0.0005 in PPO seq",
        ),
        (
            "hardware",
            {"mode": "distributed", "settings": {"cluster.num_nodes": 4}},
            "num_nodes: 1 in PPO sequential; 4 in PPO distributed",
        ),
        (
            "hardware",
            {"record": {"impala": {"remote": {"other_hosts": 2}}}},
            "joined_hosts: 0 in PPO sequential; 2 in PPO parallel",
        ),
        (
            "hardware",
            {"mode": "distributed", "settings": {"cluster.elastic": True}},
            "elastic: False in PPO sequential; True in PPO distributed",
        ),
        (
            "hyperparameters",
            {"mode": "distributed", "settings": {"cluster.compression": "bf16"}},
            "compression: none in PPO sequential; bf16 in PPO distributed",
        ),
        (
            "hyperparameters",
            {"mode": "distributed", "settings": {"cluster.powersgd_rank": 4}},
            "powersgd_rank: none in PPO sequential; 4 in PPO distributed",
        ),
        (
            "hyperparameters",
            {"mode": "distributed", "settings": {"cluster.overlap": True}},
            "overlap: False in PPO sequential; True in PPO distributed",
        ),
        (
            "budget",
            {"settings": {"training.duration_hours": 1.0}},
            "duration_hours: 0.5 in PPO sequential; 1 in",
        ),
        (
            "hardware",
            {"record": {"hardware.cpu_model": "Fast CPU"}},
            "cpu_model: Test CPU in PPO sequential; Fast",
        ),
        (
            "hardware",
            {"record": {"hardware.threads": [1, 1, 1, 1]}},
            "threads in all: 2 in PPO sequential; 4 in",
        ),
        ("duration", {"rows": line(1, 2, 1000, 150)}, "hours: PPO sequential 0.0278; PPO parallel 0.0417"),
        (
            "load",
            {"record": {"hardware.load_average": 7.5}},
            "b (load 7.50 at the end, with 2 threads of the run)",
        ),
        (
            "load",
            {"record": {"resource_usage.others_cpu_percent": 12.0}},
            "b (12 % of the CPUs during the run",
        ),
        (
            "software",
            {"record": {"software.torch": "2.14.0"}},
            "torch: 2.13.0 in PPO sequential; 2.14.0 in PPO par",
        ),
        ("seeds", {"seed": 2}, "PPO sequential: 1; PPO parallel: 2"),
        (
            "game",
            {"env": "procgen-maze-v0"},
            "2 games (coinrun, maze): raw returns are compared within a game only",
        ),
        ("runs marked", {"status": "interrupted"}, "b: interrupted"),
    ],
)
def test_difference_is_named(compare: Any, aspect: str, changes: dict[str, Any], text: str) -> None:
    assert text in compare(**changes)[aspect]


def test_durations_within_five_percent_are_equal(compare: Any) -> None:
    assert "duration" not in compare(rows=line(1, 2, 1000, 104))


def test_load_during_a_run_overrides_the_load_average(compare: Any) -> None:
    idle = {"resource_usage.others_cpu_percent": 1.2, "hardware.load_average": 4.0}
    assert "load" not in compare(record=idle)


def test_runs_at_the_same_time(compare: Any) -> None:
    times = {"start_time": "2026-01-01T00:00:00+00:00", "end_time": "2026-01-01T01:00:00+00:00"}
    assert "load" not in compare(record=times)  # the other one took no time
    later = {"start_time": "2025-12-31T23:30:00+00:00", "end_time": "2026-01-01T00:30:00+00:00"}
    assert "b and a" in compare(record=later)["load"]


def test_games_that_only_some_groups_played(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", line(1, 2, 10, 1)),
        write_run(tmp_path / "b", line(1, 2, 10, 1), env="procgen-maze-v0"),
        write_run(tmp_path / "c", line(1, 2, 10, 1), mode="parallel"),
    ]
    texts = [each.text for each in differences(group_runs([(0, load_run(path)) for path in paths]))]
    assert "not every group played every game (PPO sequential: coinrun, maze; PPO parallel: coinrun)" in texts


def test_repeated_seed_and_left_out_runs(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, line(1, 2, 10, 1), seed=4) for name in "ab"]
    groups = group_runs([(0, load_run(path)) for path in paths])
    texts = [each.text for each in differences(groups, [LostRun(Path("x"), "failed after 3 timesteps")])]
    assert texts == [
        "PPO sequential on coinrun has seed 4 more than once: these runs are not independent",
        "x: failed after 3 timesteps",
    ]


def test_evaluations_that_differ_or_are_missing(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, line(1, 2, 10, 1), seed=seed) for seed, name in enumerate("abc")]
    evaluation(paths[0], 1, 1, episodes_per_split=100)
    evaluation(paths[1], 1, 1, episodes_per_split=50)
    texts = [each.text for each in differences(group_runs([(0, load_run(path)) for path in paths]))]
    assert "not every run was evaluated (missing: c)" in texts
    assert "episodes_per_split: 100 in PPO sequential; 50 in PPO sequential" in texts


def test_threads_of_a_run_do_not_count_as_other_load(compare: Any) -> None:
    # Two threads make 1.9 in the first run: with four threads of its own 3.9 is as little beyond them.
    assert "load" not in compare(record={"hardware.load_average": 3.9, "hardware.threads": [1, 1, 1, 1]})
    assert "load" not in compare(record={"hardware.load_average": 0.3, "hardware.threads": [2]})
    found = compare(record={"hardware.load_average": 5.1, "hardware.threads": [1, 1, 1, 1]})["load"]
    assert (
        found
        == "the machine was busy with other work during b (load 5.10 at the end, with 4 threads of the run)\n"
    )


def test_load_of_a_node_is_compared_with_the_threads_of_that_node(compare: Any) -> None:
    record = {"hardware.load_average": 7.0, "hardware.threads": [2, 2, 2, 2]}
    settings = {"cluster.num_nodes": 4}
    assert "b (load 7.00 at the end, with 2 threads" in compare(record=record, settings=settings)["load"]


def test_workers_of_a3c_change_the_algorithm(tmp_path: Path) -> None:
    rows = line(1, 2, 10, 1)
    paths = [
        write_run(tmp_path / str(n), rows, "a3c", "parallel", settings={"parallel.num_workers": n})
        for n in (2, 4)
    ]
    found = differences(group_runs([(0, load_run(path)) for path in paths]))
    assert [(each.aspect, each.text) for each in found] == [
        ("hyperparameters", "num_workers: 2 in A3C parallel, 2 workers; 4 in A3C parallel, 4 workers")
    ]


def test_distribution_modes_of_a_game_are_a_difference(compare: Any) -> None:
    found = compare(settings={"env.distribution_mode": "hard"})
    assert found["game"] == (
        "coinrun easy and coinrun hard are different tasks: their returns are not compared\n"
    )


def test_runs_left_out_for_one_reason_are_listed_together(tmp_path: Path) -> None:
    group = group_runs([(0, load_run(write_run(tmp_path / "run", line(1, 2, 10, 1))))])
    skipped = [LostRun(Path(name), "damaged" if name == "b" else "it has not begun") for name in "abc"]
    (found,) = differences(group, skipped)
    assert found == ("runs left out", "a, c: it has not begun; b: damaged")


def test_numbers_of_actors_that_were_chosen_before_each_run(tmp_path: Path) -> None:
    groups = group_runs(
        [
            (0, load_run(impala_run(tmp_path / f"{seed}", seed, actors, 2)))
            for seed, actors in ((1, 2), (2, 4), (3, 2))
        ]
    )
    (found,) = [each for each in differences(groups) if "num_" in each.text]
    assert found.aspect == "hyperparameters"
    assert found.text == "num_actors: 2, 4, 2 in IMPALA parallel, chosen by a measurement before each run"


def impala_run(folder: Path, seed: int, actors: int, learners: int) -> Path:
    """Write a run whose numbers of processes were chosen by a measurement."""
    settings = {"impala.num_actors": actors, "impala.num_learners": learners}
    record = {"impala": {"calibration": {"chosen": ["num_actors", "num_learners"]}}}
    rows = line(1, 2, 1000, 100)
    return write_run(folder, rows, "impala", "parallel", seed=seed, settings=settings, record=record)
