"""Predictions for clusters from what is kept of measurements, and how they are reported."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from perf.cluster_scaling import grid as grid_module
from perf.cluster_scaling.data import Data, link_name, load, merge
from perf.cluster_scaling.grid import (
    AS_IT_IS,
    FIXED,
    GROWING,
    ONE_RING,
    WAYS,
    Grid,
    Way,
    costs,
    first_below,
    largest_cost,
    with_threads,
    workload_of,
)
from perf.cluster_scaling.model import Options, Workload, minibatches, predict
from perf.cluster_scaling.pieces import mean_of
from perf.cluster_scaling.reduce import hidden_share
from perf.cluster_scaling.report import parse_link, report
from tests.perf.test_cluster_scaling import A2C, COMPUTING, LEARN, MACHINE, NET, STEP


def test_links_are_named_by_rate_and_delay() -> None:
    assert link_name(1e8, 0.0) == "100 Mb/s"
    assert link_name(1e9, 1e-4) == "1 Gb/s + 0.1 ms"
    assert link_name(math.inf, 0.0) == "no limit"


def test_parts_are_kept_beside_each_other_and_a_missing_one_is_named(tmp_path: Path) -> None:
    merge(tmp_path, {"links": {"no limit": {"all_reduce": {32: 1e-4, 1000: 2e-4}, "direct": {}}}})
    merge(tmp_path, {"check": [1]})
    data = load(tmp_path)
    assert data.links == {"no limit": {"all_reduce": {32: 1e-4, 1000: 2e-4}, "direct": {}}}
    assert data.part("check") == [1]
    with pytest.raises(SystemExit, match="--only compute"):
        data.part("compute")
    with pytest.raises(SystemExit, match="--only links"):
        Data({}).part("ranks")


def test_the_mean_of_processes_is_that_of_every_number() -> None:
    one, other = {"act": {1: 2.0, 4: 6.0}, "parameters": 10}, {"act": {1: 4.0, 4: 8.0}, "parameters": 10}
    assert mean_of([one, other]) == {"act": {1: 3.0, 4: 7.0}, "parameters": 10}


def test_what_computing_hides_is_a_share_of_the_shorter_of_both() -> None:
    assert hidden_share(alone=4.0, compute=10.0, both=11.0) == pytest.approx(3 / 4)
    assert hidden_share(alone=10.0, compute=4.0, both=14.5) == 0.0
    assert hidden_share(alone=10.0, compute=4.0, both=9.9) == 1.0


def test_links_are_read_as_they_are_named() -> None:
    for rate, delay in ((1e8, 0.0), (1e9, 1e-4), (1e10, 1e-3)):
        assert parse_link(link_name(rate, delay)) == (pytest.approx(rate), pytest.approx(delay))


def test_work_grows_with_the_cluster_and_minibatches_with_it_or_not() -> None:
    assert workload_of(GROWING, ranks=4) == Workload("ppo", 16, 128, 16 * 128 * 4 // 8, 4)
    assert workload_of(FIXED, ranks=4).batch_size == 8192
    assert minibatches(workload_of(GROWING, 64), 64) == minibatches(workload_of(GROWING, 8), 8) == 32
    assert minibatches(workload_of(FIXED, 64), 64) == 4 * 16
    assert workload_of(grid_module.A2C, ranks=2, envs=32).samples == 32 * 16


def test_a_rank_of_two_threads_is_faster_by_what_they_are_worth() -> None:
    faster = with_threads(COMPUTING, threads=2, efficiency=0.75)
    assert faster.act[11] == pytest.approx(COMPUTING.act[11] / 1.5)
    assert faster.learn["ppo"][100] == pytest.approx(STEP[100] / 1.5)
    assert faster.rest == COMPUTING.rest


def test_costs_are_what_a_core_alone_does_not_pay() -> None:
    prediction = predict(A2C, 2, 1, NET, COMPUTING, MACHINE)
    found = costs(prediction, ideal_learn=prediction.parts["learn"] - 0.002)
    assert found["small shares"] == pytest.approx(0.002)
    assert found["latency, network"] == pytest.approx(7 * 2 * 1e-3)
    assert largest_cost(prediction, LEARN) == "hops between nodes"
    assert costs(prediction, ideal_learn=1.0)["small shares"] == 0.0


def test_the_first_size_below_a_limit_is_found() -> None:
    assert first_below([(8, 0.4), (2, 0.9), (4, 0.6)], 0.5) == 8
    assert first_below([(2, 0.9)], 0.5) is None


def measured(network_hop: float, node_hop: float) -> Data:
    """What a run of perf.cluster_scaling might leave, of a network of 250,000 parameters."""

    def all_reduce(hop: float, ranks: int = 2) -> dict[str, object]:
        times = {32: 2 * (ranks - 1) * hop, 1_000_000: 2 * (ranks - 1) * hop + 1e-3}
        direct = {32: 1.5 * hop, 1_000_000: 3 * hop + 1e-3}
        return {
            "all_reduce": times,
            "direct": direct,
            "hidden": {1_000_000: 0.5},
            "gather": 1e-4 * ranks,
            "connections": ranks,
        }

    pieces = {
        **vars(COMPUTING),
        "low_rank": vars(COMPUTING.low_rank),
        "thread_efficiency": 0.8,
        "beta": 0.001,
    }
    machine = {
        "index_seconds": {0: 0.0, 1000: 1e-6},
        "sharing": {"meeting": 2e-5, "bandwidth": 4e9},
        "state_bytes": 5e4,
    }
    links = {link_name(rate, 0.0): all_reduce(network_hop) for rate in (math.inf, 1e9)}
    check = {"case": "A2C", "link": "1 Gb/s", "algorithm": "a2c", "network": "impala"}
    return Data(
        {
            "compute": {"networks": {"impala": pieces}, "machine": machine, "cores": 2},
            "links": links,
            "ranks": {
                "here": {n: all_reduce(node_hop, n) for n in (2, 4)},
                "apart": {n: all_reduce(network_hop, n) for n in (2, 4)},
                "far": {n: all_reduce(network_hop + 2e-3, n) for n in (2, 4)},
            },
            "check": [{**check, "predicted_fps": 1100.0, "measured_fps": 1000.0, "runs": [{"fps": 1000.0}]}],
        }
    )


def test_hops_are_those_that_were_measured_between_two_ranks() -> None:
    machine = measured(1e-3, 2e-4).machine()
    assert (machine.wire.latency, machine.local.latency) == (pytest.approx(1e-3), pytest.approx(2e-4))
    assert machine.wire.direct == pytest.approx(1.5e-3)
    assert machine.gather_seconds == pytest.approx(1e-4)


def test_what_would_help_helps_and_more_nodes_cost_efficiency() -> None:
    grid = Grid(measured(1e-3, 2e-4))
    nested, ring = (grid.predict(GROWING, "impala", 32, 32, 1e10, 1e-4, way) for way in (AS_IT_IS, ONE_RING))
    assert nested.fps > 2 * ring.fps
    rows = [grid.row(GROWING, "impala", nodes, 8, 1e10, 1e-4, ONE_RING) for nodes in (1, 8, 128)]
    efficiencies = [row["efficiency"] for row in rows]
    assert 1 > efficiencies[0] > efficiencies[1] > efficiencies[2] > 0
    assert rows[-1]["largest_cost"] == "hops within nodes"  # 1,024 ranks, seven of eight hops within a node


def test_ranks_of_two_threads_are_half_as_many_steps_of_an_all_reduce() -> None:
    grid = Grid(measured(1e-3, 2e-4))
    threads = next(way for way in WAYS if way.threads == 2)

    def ratio(*ways: Way) -> float:
        one, two = (
            grid.predict(GROWING, "impala", 4, 16, 1e10, 1e-4, way).parts["latency, node"] for way in ways
        )
        return two / one

    # 64 ranks, 60 hops within nodes; 32 ranks, 28 of them. Of each ring the last hop is not needed.
    assert ratio(ONE_RING, replace(threads, options=Options())) == pytest.approx(
        (31 / 32 * 28) / (63 / 64 * 60)
    )
    assert ratio(AS_IT_IS, threads) == pytest.approx(3 / 4)  # 16 = 2**4 and 8 = 2**3 ranks of a node meet


def test_the_report_has_every_table_and_a_picture(tmp_path: Path) -> None:
    found = report(tmp_path, measured(1e-3, 2e-4))
    text = (tmp_path / "cluster_scaling.md").read_text(encoding="utf-8")
    assert "1 of 1 within 15%" in text
    assert "| A2C | 1 Gb/s | 1,100 | 1,000 | 1,000 to 1,000 | +10% |" in text
    for way in WAYS:
        assert f"| {way.name} |" in text
    row = next(each for each in found if each["nodes"] == 128 and each["cores"] == 64)
    assert f"{row['fps']:,.0f} ({row['efficiency']:.0%})" in text
    assert (tmp_path / "cluster_scaling.png").read_bytes().startswith(b"\x89PNG")
