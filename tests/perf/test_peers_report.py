"""The comparison with other libraries: windows, tables and verdicts against calculations by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perf.peers import report as peers_report
from perf.peers.cases import BARS, CASES, OWN, SIDES, Bar
from perf.peers.install import PEERS
from perf.peers.results import DOCUMENT
from perf.peers.run import Measurement, Point, Window
from rlcb.errors import UsageError

BY_NAME = {case.name: case for case in CASES}
CASE = BY_NAME["ppo-impala"]


def figures(
    fps: float, memory: float = 1000.0, others: float = 2.0, threads: int | None = None
) -> dict[str, Any]:
    versions = {"python": "3.11.2", "torch": "2.13.0", "stable-baselines3": "2.9.2"}
    return Measurement(fps, 3, 20.0, memory, others, versions, threads).to_dict()


ROUNDS = [
    {"sequential": figures(100, 400), "parallel": figures(150, 900), "sb3": figures(50, 1000, threads=2)},
    {"sequential": figures(120, 500), "parallel": figures(90, 800), "sb3": figures(30, 900, threads=2)},
    {"sequential": figures(80, 450), "parallel": figures(200, 850), "sb3": figures(40, 1100, threads=2)},
]


# --- What is counted of a run ---


def points(*pairs: tuple[float, int]) -> list[Point]:
    return [Point(*pair) for pair in pairs]


def test_a_window_begins_after_the_warm_up_and_is_full_when_both_limits_are_reached() -> None:
    window = Window(seconds=10, updates=2)
    seen = points((1.0, 10), (4.0, 20), (9.0, 30), (13.0, 40), (14.5, 50))
    assert window.of(seen[:1]) is None  # still warming up
    assert window.of(seen[:4]) is None  # two updates from 4.0 on, but only 9 seconds
    begin, end, updates = window.of(seen) or pytest.fail("the window is full")
    assert (begin, end, updates) == (Point(4.0, 20), Point(14.5, 50), 3)


def test_a_window_waits_for_its_updates_however_long_they_take() -> None:
    window = Window(seconds=10, updates=2)
    seen = points((60.0, 10), (120.0, 20), (180.0, 30))
    assert window.of(seen[:2]) is None
    assert window.of(seen) == (seen[0], seen[2], 2)


def test_a_run_without_updates_has_no_window() -> None:
    assert Window().of([]) is None


# --- Tables ---


def test_medians_ratios_and_memory_are_those_of_a_calculation_by_hand() -> None:
    rows = peers_report.case_table(CASE, ROUNDS, {}).splitlines()
    # ratios within the rounds: 100 / 50 = 2, 120 / 30 = 4, 80 / 40 = 2
    assert "| this project, sequential | 100 | 80 to 120 | 2.00 | 450 |" in rows
    # 150 / 50 = 3, 90 / 30 = 3, 200 / 40 = 5
    assert "| this project, parallel | 150 | 90 to 200 | 3.00 | 850 |" in rows
    assert len(rows) == 2 + len(CASE.sides)


def test_a_side_that_did_not_run_says_why() -> None:
    table = peers_report.case_table(CASE, ROUNDS, {"cleanrl": "no package for this Python"})
    assert "| CleanRL, ppo_procgen | did not run: no package for this Python | | | |" in table.splitlines()
    assert "| Sample Factory, APPO | did not run: not measured | | | |" in table.splitlines()


def test_a_side_that_failed_in_one_round_has_the_ratios_of_the_others_and_says_how_many() -> None:
    rounds = [{**ROUNDS[0], "plain": figures(10, 700)}, ROUNDS[1], {**ROUNDS[2], "plain": figures(20, 800)}]
    rows = peers_report.case_table(CASE, rounds, {"plain": "it ended"}).splitlines()
    # 10 / 50 and 20 / 40; the middle of 0.2 and 0.5
    assert f"| {SIDES['plain'].title} (2 of 3 rounds) | 15 | 10 to 20 | 0.35 | 750 |" in rows


def test_a_base_that_failed_in_one_round_leaves_the_ratios_of_the_others() -> None:
    without = {side: each for side, each in ROUNDS[0].items() if side != "sb3"}
    rows = peers_report.case_table(CASE, [without, *ROUNDS[1:]], {}).splitlines()
    # 90 / 30 = 3 and 200 / 40 = 5
    assert "| this project, parallel | 150 | 90 to 200 | 4.00 | 850 |" in rows
    assert "| Stable-Baselines3 (2 of 3 rounds) | 35 | 30 to 40 | 1.00 | 1,000 |" in rows


@pytest.mark.parametrize(
    ("bar", "ratio", "enough"),
    [
        (Bar("ppo-impala", "parallel", "sb3", 3.0), 3.0, True),
        (Bar("ppo-impala", "parallel", "sb3", 3.01), 3.0, False),
        (Bar("ppo-impala", "sequential", "sb3", 1.5), 2.0, True),
        (Bar("ppo-impala", "sequential", "sb3", 0.5, memory=True), 0.4091, True),
        (Bar("ppo-impala", "sequential", "sb3", 0.4, memory=True), 0.4091, False),
    ],
)
def test_a_bar_is_compared_with_the_median_ratio(bar: Bar, ratio: float, enough: bool) -> None:
    """Memory: 400 / 1000, 500 / 900 and 450 / 1100."""
    found, reached = peers_report.verdict(bar, ROUNDS) or pytest.fail("both sides were measured")
    assert found == pytest.approx(ratio, abs=1e-4)
    assert reached is enough


def test_a_bar_without_measurements_is_still_listed() -> None:
    bar = Bar("ppo-impala", "parallel", "sb3-pages", 1.6)
    assert peers_report.verdict(bar, ROUNDS) is None
    assert peers_report.verdict(bar, []) is None
    what = "this project, parallel, against Stable-Baselines3, pages reused"
    for measured in ({}, {"ppo-impala": ROUNDS}):
        (row,) = peers_report.bars_table(measured, [bar]).splitlines()[2:]
        assert row == f"| ppo-impala | {what} | at least 1.6 x |  | not measured |"


def test_the_table_of_bars_says_what_was_reached() -> None:
    bars = [Bar("ppo-impala", "parallel", "sb3", 2.0, aim=5.0), Bar("ppo-impala", "sequential", "sb3", 2.5)]
    against = ", against Stable-Baselines3"
    rows = peers_report.bars_table({"ppo-impala": ROUNDS}, bars).splitlines()[2:]
    assert rows == [
        f"| ppo-impala | this project, parallel{against} | at least 2 x (aim 5 x) | 3.00 x | yes |",
        f"| ppo-impala | this project, sequential{against} | at least 2.5 x | 2.00 x | **no** |",
    ]


def test_fewer_than_three_rounds_with_both_sides_give_no_verdict() -> None:
    bar = Bar("ppo-impala", "parallel", "sb3", 2.0)
    without = {"parallel": figures(100)}  # in this round there is nothing to compare with
    for rounds, count in ((ROUNDS[:1], 1), (ROUNDS[:2], 2), ([*ROUNDS[:2], without], 2)):
        (row,) = peers_report.bars_table({"ppo-impala": rounds}, [bar]).splitlines()[2:]
        assert row.endswith(f"| 3.00 x | not enough rounds: {count} of 3 |")


def test_the_report_has_every_measured_case_and_the_versions() -> None:
    data = {
        "machine": {"cpu_model": "A processor", "usable_cores": 2, "ram_gb": 24.0},
        "rounds": {"ppo-impala": [*ROUNDS, {"sb3": figures(40, 1000, others=30.0, threads=2)}]},
        "unavailable": {"sample-factory": "no package"},
        "failed": {"ppo-impala": {"cleanrl": "it ended"}, "ppo-nature": {"plain": "not this one"}},
    }
    text = peers_report.report(data)
    assert "A processor, 2 usable cores, 24 GB." in text
    assert "### ppo-impala" in text and "### a2c-nature" not in text
    assert "4 rounds; other programs took 2 % of the processor meanwhile (median" in text
    assert "30 % at the most" in text
    assert "| Stable-Baselines3 | Python 3.11.2, torch 2.13.0, Stable-Baselines3 2.9.2, 2 threads |" in text
    assert "did not run: no package" in text and "did not run: it ended" in text
    assert "not this one" not in text


def test_the_versions_have_the_commit_and_all_that_cases_were_measured_on() -> None:
    def of(commit: str) -> dict[str, Any]:
        return {**figures(1), "versions": {"torch": "2.13.0", "git_commit": commit}}

    measured = {"ppo-impala": [{"parallel": of("abc")}], "ppo-nature": [{"parallel": of("def-dirty")}] * 2}
    (row,) = peers_report.versions_table(measured).splitlines()[2:]
    assert row == "| this project, parallel | torch 2.13.0, commit abc; torch 2.13.0, commit def-dirty |"


def test_tables_go_between_the_marks_and_leave_the_rest(tmp_path: Path) -> None:
    document = tmp_path / "peers.md"
    document.write_text(f"before\n{peers_report.BEGIN}\nold\n{peers_report.END}\nafter\n")
    for text in ("new", "newer"):
        peers_report.write_between_marks(document, text)
    expected = f"before\n{peers_report.BEGIN}\n\nnewer\n\n{peers_report.END}\nafter\n"
    assert document.read_text() == expected
    document.write_text("no marks")
    with pytest.raises(UsageError, match="must have the lines"):
        peers_report.write_between_marks(document, "new")
    assert document.read_text() == "no marks"
    with pytest.raises(UsageError, match="cannot read"):
        peers_report.require_marks(tmp_path / "none.md")


def test_the_document_of_the_project_has_the_marks() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.count(peers_report.BEGIN) == text.count(peers_report.END) == 1


def test_every_bar_and_side_is_one_that_is_measured() -> None:
    for bar in BARS:
        assert {bar.side, bar.base} <= set(BY_NAME[bar.case].sides)
    for side in SIDES.values():
        assert side.peer == OWN or side.peer in PEERS
    for case in CASES:
        assert set(case.sides) <= set(SIDES)
        rollout = case.num_envs * case.n_steps
        assert case.batch_size is None or rollout % case.batch_size == 0
