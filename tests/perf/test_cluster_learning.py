"""The return over wall clock of nodes over slow links is composed of a speed and a curve."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from perf import measure
from perf.cluster_learning import report
from perf.cluster_learning.__main__ import Plan, chosen_every, collect, curve_place
from perf.cluster_learning.composition import compose, horizon, panels
from perf.cluster_learning.report import check_lines, choices, table
from perf.cluster_learning.runs import speed_of
from perf.cluster_learning.ways import UPDATE, WAYS
from rlcb.files import write_json

CHOICE = {"every": 9, "average_seconds": 2.0, "update_seconds": 1.0}
FAST = {"timesteps": [100, 200, 300], "returns": [None, 2.0, 4.0], "seconds": [1.0, 2.0, 3.0]}
SLOW = {"timesteps": [100, 200, 300], "returns": [1.0, 4.0, 6.0], "seconds": [1.0, 2.0, 3.0]}


def cell(way: str, fps: list[float], curves: list[dict[str, Any]], **speed: Any) -> dict[str, Any]:
    speeds = [{"fps": each, "sync_seconds": 0.1, "every": None, **speed} for each in fps]
    return {"ranks": 2, "link": "10mbit", "way": way, "speeds": speeds, "curves": curves}


CELLS = [
    cell("plain", [9.0, 10.0, 14.0], [SLOW]),
    cell("auto", [40.0, 60.0], [FAST, SLOW], every=9, choice=CHOICE),
    cell("bf16", [], [SLOW]),
    cell("every4", [50.0], [], every=4),
]


def test_a_way_without_a_speed_is_left_out_and_one_without_a_curve_has_no_return() -> None:
    found = compose(CELLS, 300)
    assert [(each.key, each.has_curve) for each in found] == [
        ("plain", True),
        ("auto", True),
        ("every4", False),
    ]
    assert (
        table(found).splitlines()[-1].endswith("| 50 | 50 to 50 | 5.00 | 6 | not run | not run | not run |")
    )


def test_wall_clock_is_timesteps_by_the_median_speed() -> None:
    plain, auto, _ = compose(CELLS, 300)
    assert plain.seconds.tolist() == [10, 20, 30]
    assert auto.seconds.tolist() == [2, 4, 6]
    assert horizon([plain, auto]) == 6
    assert auto.name == "averages, auto (9)"


def test_the_return_after_some_seconds_lies_on_the_mean_curve_of_the_seeds() -> None:
    plain, auto, _ = compose(CELLS, 300)
    assert math.isnan(plain.return_after(6))  # its first update ends after 10 s
    assert plain.return_after(15) == pytest.approx((1 + 4) / 2)
    assert plain.return_after(1000) == 6
    assert auto.return_after(4) == pytest.approx((2 + 4) / 2)
    assert auto.return_after(5) == pytest.approx((3 + 5) / 2)
    assert math.isnan(auto.return_after(2))  # no episode of one seed had ended


def test_the_table_shows_both_parts_and_what_is_composed() -> None:
    ((_, ways),) = panels(compose(CELLS, 300)).items()
    header, _, plain, auto, _ = table(ways).splitlines()
    assert "return after 6 s" in header
    assert [part.strip() for part in plain.split("|")[1:-1]] == [
        *("one all-reduce", "10", "9 to 14", "1.00", "30", "6.00", "3.67", "none yet"),
    ]
    assert [part.strip() for part in auto.split("|")[1:-1]] == [
        *("averages, auto (9)", "50", "40 to 60", "5.00", "6", "4.00, 6.00", "3.00, 3.67", "5.00"),
    ]


def test_a_real_run_over_the_link_is_compared_with_the_composition() -> None:
    real = {**SLOW, "seconds": [9.0, 18.0, 25.0], "returns": [None, 4.5, 6.0]}
    check = {"way": "plain", "ranks": 2, "link": "10mbit", "real": real, "without_link": SLOW}
    (line,) = check_lines([check], compose(CELLS, 300))
    assert "25 s for 300 timesteps, composed 30 s (+20%)" in line
    assert line.endswith("differ by at most 0.5")


def test_what_auto_chose_is_told() -> None:
    assert choices(CELLS) == [
        "- 2 ranks, 10 Mb/s: 9 (an average 2 s, an update 1 s); 9 (an average 2 s, an update 1 s)"
    ]


def test_the_speed_leaves_out_the_first_update() -> None:
    rows = [
        {"timesteps": 100 * number, "time/elapsed_seconds": elapsed, "profile/sync_seconds": sync}
        for number, (elapsed, sync) in enumerate([(9.0, 8.0), (11.0, 0.5), (14.0, 1.5)], 1)
    ]
    assert speed_of(rows) == {"fps": pytest.approx(200 / 5), "sync_seconds": pytest.approx(1.0)}


def plan(folder: Path) -> Plan:
    return Plan(folder, "starpilot", tuple(WAYS), (2, 4), ("100mbit", "10mbit"), 2, (1, 2), 3)


def made_up_run(folder: Path, returns: list[float]) -> None:
    (folder / "logs" / "PPO_Distributed").mkdir(parents=True)
    rows = [
        {"timesteps": UPDATE * n, "rollout/ep_reward_mean": value, "time/elapsed_seconds": 2.0 * n}
        for n, value in enumerate(returns, 1)
    ]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "logs" / "PPO_Distributed" / "metrics.jsonl").write_text(text)
    write_json(folder / "benchmark_metrics.json", {"status": "completed"})


def test_each_way_has_the_curve_of_what_it_learns(tmp_path: Path) -> None:
    ours = plan(tmp_path)
    assert curve_place(ours, "plain", 4, "10mbit") == ("plain", 2, ())  # on 4 ranks the sums are equal
    assert curve_place(ours, "every4", 4, "10mbit") == ("every4", 4, ("cluster.average_every=4",))
    assert curve_place(ours, "auto", 4, "10mbit") is None
    write_json(ours.speed_file, {"4 10mbit auto": [{"every": 30}, {"every": 26}, {"every": 28}]})
    assert chosen_every(ours, 4, "10mbit") == 28
    assert curve_place(ours, "auto", 4, "10mbit") == ("every28", 4, ("cluster.average_every=28",))


def test_the_report_is_written_from_what_the_folder_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (measure, report):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    ours = plan(tmp_path)
    for way, ranks in (("plain", 2), ("every4", 2), ("every4", 4), ("every28", 4)):
        for seed in (1, 2):
            made_up_run(ours.run_folder(way, ranks, seed), [1.0, 2.0, 2.0 + seed])
    made_up_run(ours.run_folder("plain", 2, 1, "100mbit"), [1.0, 2.0, 3.0])
    speed = {"fps": 1024.0, "sync_seconds": 1.0, "every": None}
    write_json(
        ours.speed_file,
        {
            **{f"{ranks} 100mbit plain": [speed] for ranks in (2, 4)},
            **{f"{ranks} 100mbit every4": [{**speed, "fps": 2048.0, "every": 4}] for ranks in (2, 4)},
            "4 10mbit auto": [{**speed, "every": 28, "choice": {**CHOICE, "every": 28}}],
        },
    )
    report.write(collect(ours, ["plain", "every4"]))
    text = (tmp_path / "results" / "cluster_learning.md").read_text()
    assert "### 2 ranks, 100 Mb/s" in text and "### 4 ranks, 10 Mb/s" in text
    assert (
        "| averages every 4 updates | 2,048 | 2,048 to 2,048 | 2.00 | 3 | 3.00, 4.00 | 2.00, 2.33 | 3.50 |"
        in text
    )
    assert "6 s for 6,144 timesteps, composed 6 s (+0%)" in text
    found = json.loads((tmp_path / "results" / "cluster_learning.json").read_text())
    assert found["timesteps"] == 3 * UPDATE
    assert (tmp_path / "results" / "cluster_learning.png").read_bytes().startswith(b"\x89PNG")
    assert "cluster_learning" in capsys.readouterr().out
