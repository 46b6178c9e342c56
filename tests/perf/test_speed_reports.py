"""What is written down of measurements of speed: figures of every round, not of the last one."""

from __future__ import annotations

from typing import Any

from perf import cluster_reduction, modes_speed
from perf.measure import Comparison
from perf.modes_speed import Case


def calibration(limit: float, actors: int = 2) -> dict[str, Any]:
    """As it stands in a record: 2 cores, 16 environments an actor; 32 at a time would act faster."""
    return {
        "cores": 2,
        "act_seconds": {"16": 2 / limit - 3e-4, "32": 1e-4},
        "learn_seconds": 3e-4,
        "num_actors": actors,
        "num_learners": 2,
        "limit": limit,
    }


CASE = Case("impala", "nature", 32, 32, ("sequential", "parallel"), 60)
RATES = {"sequential": [1500.0, 1600.0, 1700.0], "parallel": [3600.0, 3000.0, 3800.0]}
LIMITS = (4000.0, 4000.0, 2000.0)


def details() -> dict[str, list[dict[str, Any]]]:
    plain = [{"peak_memory_mb": 800 + n, "shares": {"env": 0.1 * n, "learn": 0.5}} for n in (1, 2, 6)]
    with_limit = [
        {**each, "impala": {"calibration": calibration(limit, actors)}}
        for each, limit, actors in zip(plain, LIMITS, (2, 4, 2), strict=True)
    ]
    without = [{**each, "impala": {"calibration": None}} for each in plain]
    return {"sequential": without, "parallel": with_limit}


def test_a_share_of_the_limit_is_that_of_each_rounds_own_calibration() -> None:
    lines = modes_speed.describe(CASE, Comparison(RATES), details()).splitlines()
    assert "- sequential: peak 802 MB; env 20.0%, learn 50.0%" in lines
    assert "- parallel: actors and learners 2 and 2, 4 and 2" in lines
    # 3,600 / 4,000, 3,000 / 4,000, 3,800 / 2,000; the last calibration alone would say 180 %.
    expected = "90% (75% to 190%) of the limit cores / (t_act + t_learn) with the t_act of the chosen split"
    assert f"- parallel: {expected}, 4,000 timesteps/s" in lines
    # 2 / (0.1 ms + 0.3 ms) = 5,000 in each round
    expected = "72% (60% to 76%) of the limit cores / (t_act + t_learn) with the shortest t_act"
    assert f"- parallel: {expected}, 5,000 timesteps/s" in lines
    assert not any(line.startswith("- sequential") and "limit" in line for line in lines)


def test_links_are_reported_with_rates_ratios_and_waiting() -> None:
    ways = cluster_reduction.WAYS["reduction"]
    rates = {name: [100.0, 200.0, 300.0] for name in ways}
    rates["bf16"] = [150.0, 400.0, 390.0]
    waits = {name: [0.3, 0.1, 0.2] for name in ways}
    lines = cluster_reduction.describe("100mbit", Comparison(rates), waits).splitlines()
    assert lines[0] == "### 100mbit"
    assert "| bf16 | 390 | 150 to 400 | 1.50 |" in lines
    assert "- bf16: 0.200 s of an update wait for the sum" in lines
