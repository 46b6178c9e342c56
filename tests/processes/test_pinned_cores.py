"""Cores for workers: topologies that are made up, claims against other runs, and a real run."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from rlcb.config.settings import EnvConfig
from rlcb.config.yaml_file import build_config
from rlcb.errors import UsageError
from rlcb.processes.pinned_cores import Core, pinned_cores, place, read_cores
from tests import runs


def make_system(folder: Path, cores: dict[tuple[int, ...], int]) -> Path:
    """Write a made-up /sys/devices/system; `cores` maps the hyper-threads of each core to its NUMA node."""
    for cpus, node in cores.items():
        for cpu in cpus:
            topology = folder / "cpu" / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(",".join(map(str, cpus)) + "\n")
            (topology.parent / f"node{node}").mkdir()
    return folder


TWO_SOCKETS = {(0, 8): 0, (1, 9): 0, (2, 10): 0, (3, 11): 0, (4, 12): 1, (5, 13): 1, (6, 14): 1, (7, 15): 1}


def test_hyper_threads_are_one_core_and_masks_are_respected(tmp_path: Path) -> None:
    system = make_system(tmp_path, TWO_SOCKETS)
    assert read_cores(range(16), system) == [Core(cpus, node) for cpus, node in TWO_SOCKETS.items()]
    # srun --cpu-bind gave one thread of core 1, both of core 2, and the second one of core 7.
    assert read_cores({1, 2, 10, 15}, system) == [Core((1,), 0), Core((2, 10), 0), Core((15,), 1)]


def test_cpus_that_the_system_does_not_describe_are_cores_of_node_0(tmp_path: Path) -> None:
    assert read_cores({3, 5}, tmp_path) == [Core((3,), 0), Core((5,), 0)]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux has masks")
def test_the_cores_of_this_machine_cover_its_mask_once() -> None:
    allowed = os.sched_getaffinity(0)
    found = [cpu for core in read_cores(allowed) for cpu in core.cpus]
    assert sorted(found) == sorted(allowed)


def test_workers_are_spread_over_numa_nodes(tmp_path: Path) -> None:
    cores = read_cores(range(16), make_system(tmp_path, TWO_SOCKETS))
    assert place(cores, 2, 1) == ((0, 8), (4, 12))
    assert place(cores, 4, 2) == ((0, 8, 1, 9), (4, 12, 5, 13), (2, 10, 3, 11), (6, 14, 7, 15))
    every = place(cores, 8, 1)
    assert sorted(cpu for cpus in every for cpu in cpus) == list(range(16))


def test_the_cores_of_a_worker_are_of_one_node(tmp_path: Path) -> None:
    uneven = {(0,): 0, (1,): 0, (2,): 0, (3,): 1, (4,): 1, (5,): 1}
    cores = read_cores(range(6), make_system(tmp_path, uneven))
    assert place(cores, 2, 2) == ((0, 1), (3, 4))
    assert place(cores, 3, 2) == ()  # a core of each node is left


@pytest.mark.parametrize(("workers", "threads"), [(9, 1), (3, 3), (1, 5)])
def test_too_few_cores_pin_nobody(tmp_path: Path, workers: int, threads: int) -> None:
    cores = read_cores(range(16), make_system(tmp_path, TWO_SOCKETS))
    assert place(cores, workers, threads) == ()


def test_two_runs_at_the_same_time_get_different_cores(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    system, claims = make_system(tmp_path / "system", {(0,): 0, (1,): 0, (2,): 0}), tmp_path
    with pinned_cores(range(3), 2, 1, claims, system) as first:
        assert first == ((0,), (1,))
        with pinned_cores(range(3), 1, 1, claims, system) as second:
            assert second == ((2,),)
        with caplog.at_level(logging.WARNING), pinned_cores(range(3), 2, 1, claims, system) as third:
            assert third == ()
        assert "not pinned, because 2 workers of 1 thread do not fit on the cores" in caplog.text
    with pinned_cores(range(3), 3, 1, claims, system) as last:
        assert last == ((0,), (1,), (2,))


@pytest.mark.parametrize("settings", [{"mode": "sequential"}, {"mode": "parallel", "algorithm": "impala"}])
def test_runs_without_workers_of_their_own_cores_refuse_to_pin(settings: dict[str, str]) -> None:
    data = {"env": EnvConfig(num_envs=8).model_dump(), "hardware": {"pin_workers": True}, **settings}
    training = {"n_epochs": 1, "batch_size": None, "normalize_advantages": False}
    if settings.get("algorithm") == "impala":
        data["training"] = training
    with pytest.raises(UsageError, match=r"hardware\.pin_workers = true: .* leave it out"):
        build_config(data, "test")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux pins")
@pytest.mark.timeout(120)
def test_a_run_pins_its_workers_records_it_and_still_counts_all_cores(tmp_path: Path) -> None:
    cores = read_cores(os.sched_getaffinity(0))
    workers = min(2, len(cores))
    folder = tmp_path / "run"
    result = runs.call(
        "train_ppo_parallel.py", "--env", "CartPole-v1", "--num-envs", 4, "--num-workers", workers,
        "--n-steps", 8, "--batch-size", 32, "--total-timesteps", 64, "--set", "hardware.pin_workers=true",
        "--set", "logging.tensorboard=false", "--output-dir", folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    record = runs.record(folder)
    pinned = [worker["cpus"] for worker in record["workers"]]
    if "not pinned" in result.stderr:  # another run of this machine has the cores
        assert pinned == [None] * workers
        return
    assert all(tuple(cpus) in {core.cpus for core in cores} for cpus in pinned)
    assert len({cpu for cpus in pinned for cpu in cpus}) == sum(map(len, pinned))
    said = " ".join(result.stdout.split())
    assert "each worker to cores of its own, CPUs " + "; ".join(",".join(map(str, c)) for c in pinned) in said
    assert record["hardware"]["usable_cores"] == min(len(cores), record["hardware"]["usable_cores"])
    assert record["hardware"]["usable_cores"] >= workers
