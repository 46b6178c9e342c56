"""The comparison with other libraries: windows, tables and verdicts by hand, and that all do the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from perf import peers, peers_report
from perf.peers_cases import BARS, CASES, OWN, SIDES, Bar, Case, Side, chosen_cases
from perf.peers_install import PEERS, PeerUnavailable
from perf.peers_programs.networks import NETWORKS
from perf.peers_run import Measurement, Point, Program, Window, measure
from src.cli import exit_code
from src.cpu_utils import describe_machine
from src.errors import RunError, UsageError
from src.record import describe_software
from tests import runs

BY_NAME = {case.name: case for case in CASES}
CASE = BY_NAME["ppo-impala"]


def figures(fps: float, memory: float = 1000.0, others: float = 2.0) -> dict[str, Any]:
    versions = {"python": "3.11.2", "torch": "2.13.0", "stable-baselines3": "2.9.2"}
    return Measurement(fps, 3, 20.0, memory, others, versions).to_dict()


ROUNDS = [
    {"sequential": figures(100, 400), "parallel": figures(150, 900), "sb3": figures(50, 1000)},
    {"sequential": figures(120, 500), "parallel": figures(90, 800), "sb3": figures(30, 900)},
    {"sequential": figures(80, 450), "parallel": figures(200, 850), "sb3": figures(40, 1100)},
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


def test_a_side_that_failed_in_one_round_is_in_no_ratio() -> None:
    rounds = [{**ROUNDS[0], "plain": figures(10)}, *ROUNDS[1:]]
    assert "plain" not in peers_report.comparison(rounds, "fps").rates
    assert peers_report.comparison(rounds[:1], "fps").rates["plain"] == [10]


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
def test_a_bar_is_held_against_the_median_ratio(bar: Bar, ratio: float, enough: bool) -> None:
    """Memory: 400 / 1000, 500 / 900 and 450 / 1100."""
    found, reached = peers_report.verdict(bar, ROUNDS) or pytest.fail("both sides were measured")
    assert found == pytest.approx(ratio, abs=1e-4)
    assert reached is enough


def test_a_bar_without_measurements_has_no_verdict() -> None:
    bar = Bar("ppo-impala", "parallel", "sb3-pages", 1.6)
    assert peers_report.verdict(bar, ROUNDS) is None
    assert peers_report.verdict(bar, []) is None
    assert len(peers_report.bars_table({}, [bar]).splitlines()) == 2  # the heading alone


def test_the_table_of_bars_says_what_was_reached() -> None:
    bars = [Bar("ppo-impala", "parallel", "sb3", 2.0, aim=5.0), Bar("ppo-impala", "sequential", "sb3", 2.5)]
    against = ", against Stable-Baselines3"
    rows = peers_report.bars_table({"ppo-impala": ROUNDS}, bars).splitlines()[2:]
    assert rows == [
        f"| ppo-impala | this project, parallel{against} | at least 2 x (aim 5 x) | 3.00 x | yes |",
        f"| ppo-impala | this project, sequential{against} | at least 2.5 x | 2.00 x | **no** |",
    ]


def test_the_report_has_every_measured_case_and_the_versions() -> None:
    data = {
        "machine": {"cpu_model": "A processor", "usable_cores": 2, "ram_gb": 24.0},
        "rounds": {"ppo-impala": [*ROUNDS, {"sb3": figures(40, 1000, others=30.0)}]},
        "unavailable": {},
    }
    text = peers_report.report(data)
    assert "A processor, 2 usable cores, 24 GB." in text
    assert "### ppo-impala" in text and "### a2c-nature" not in text
    assert "4 rounds; other programs took 2 % of the processor meanwhile (median" in text
    assert "30 % at the most" in text
    assert "| Stable-Baselines3 | Python 3.11.2, torch 2.13.0, Stable-Baselines3 2.9.2 |" in text


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


def test_the_document_of_the_project_has_the_marks() -> None:
    text = peers.DOCUMENT.read_text(encoding="utf-8")
    assert text.count(peers_report.BEGIN) == text.count(peers_report.END) == 1


# --- Rounds ---


class Silent(peers.Progress):
    """Keeps what would be printed."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, text: str) -> None:
        pass

    def done(self, text: str) -> None:
        self.lines.append(text)


def test_a_round_leaves_out_who_does_not_run_and_goes_on() -> None:
    progress, unavailable = Silent(), dict.fromkeys(("sample-factory", "sample-factory-serial"), "no package")

    def run(side: str, case: Case, window: Window) -> Measurement:
        if side == "cleanrl":
            raise PeerUnavailable("it ended")
        return Measurement(float(len(side)), 2, 20.0, 1.0, 0.0, {})

    measured = peers.play_round(CASE, Window(), unavailable, progress, run)
    assert list(measured) == [side for side in CASE.sides if side not in unavailable]
    assert measured["sb3"]["fps"] == 3.0
    assert unavailable.pop("cleanrl") == "it ended"
    assert set(unavailable.values()) == {"no package"}
    assert len(progress.lines) == len(CASE.sides)


def test_a_round_ends_if_this_project_does_not_run() -> None:
    def run(side: str, case: Case, window: Window) -> Measurement:
        raise PeerUnavailable("it ended with code 1")

    with pytest.raises(RunError, match="it ended with code 1"):
        peers.play_round(CASE, Window(), {}, Silent(), run)


# --- What is given ---


def test_cases_are_chosen_by_name_in_their_own_order() -> None:
    assert chosen_cases(None) == CASES
    assert [case.name for case in chosen_cases(["a2c-nature", "ppo-impala"])] == ["ppo-impala", "a2c-nature"]
    with pytest.raises(UsageError, match="--cases ppo-resnet: unknown; there are ppo-impala, "):
        chosen_cases(["ppo-impala", "ppo-resnet"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cases", "ppo-resnet"], "--cases ppo-resnet: unknown; there are"),
        (["--rounds", "0"], "--rounds 0: at least 1"),
        (["--case", "ppo-impala"], "unrecognized arguments: --case"),
        (["--rounds", "many"], "invalid int value: 'many'"),
    ],
)
def test_wrong_flags_are_one_line_and_code_2(flags: list[str], message: str, capsys: Any) -> None:
    code = exit_code(lambda: peers.run(peers.make_parser().parse_args(flags)))
    error = capsys.readouterr().err
    assert code == 2
    assert message in error and error.count("\n") == 1


def test_the_list_names_every_case_and_side(capsys: Any) -> None:
    assert peers.run(peers.make_parser().parse_args(["--list"])) == 0
    output = capsys.readouterr().out
    for case in CASES:
        assert case.name in output
        for side in case.sides:
            assert SIDES[side].title in output


def test_rounds_of_another_machine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "RESULTS", tmp_path)
    now = {**describe_machine(), "cpu_model": "another"}
    data = {"machine": now, "software": describe_software(), "unavailable": {}}
    (tmp_path / "peers.json").write_text(json.dumps({**data, "rounds": {"ppo-impala": ROUNDS}}))
    results = peers.Results()
    with pytest.raises(UsageError, match="rounds with cpu_model another"):
        results.require_same_machine()
    results.forget(CASE)
    results.require_same_machine()


# --- What is compared is the same ---


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_usual_networks_have_as_many_parameters_as_this_projects(case: Case) -> None:
    heads = torch.nn.Linear(case.hidden_size, 15), torch.nn.Linear(case.hidden_size, 1)
    modules = (NETWORKS[case.network](case.hidden_size), *heads)
    counted = sum(each.numel() for module in modules for each in module.parameters())
    assert counted == case.num_parameters
    frames = torch.rand(2, 3, 64, 64)
    assert modules[0](frames).shape == (2, case.hidden_size)


def test_the_usual_impala_network_computes_what_this_projects_computes() -> None:
    """With the same weights; the dense layer of this project takes its inputs in memory order."""
    from perf.peers_cases import FRAMES
    from src.models import ImpalaCNN

    usual, ours = NETWORKS["impala"](256), ImpalaCNN(FRAMES.network_shape, (16, 32, 32), 256)
    weights = [each.detach().clone() for each in usual.parameters()]
    weights[-2] = weights[-2].view(256, 32, 8, 8).permute(0, 2, 3, 1).flatten(1)
    for parameter, weight in zip(ours.parameters(), weights, strict=True):
        parameter.data.copy_(weight)
    frames = torch.rand(3, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(frames), usual(frames))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_a_peer_is_given_the_settings_that_this_project_trains_with(case: Case, mode: str) -> None:
    from src.cli import resolve_config
    from src.cli_flags import make_parser

    words = SIDES[mode].command(case, Path("python"), Path("folder"))
    script = Path(words[1]).name
    assert (runs.PROJECT / script).exists()
    config = resolve_config(
        make_parser(case.algorithm, mode, False).parse_args(words[2:]), case.algorithm, mode, False
    )
    given = json.loads(SIDES["sb3"].command(case, Path("python"), Path("folder"))[-1])
    ours = {**config.training.model_dump(), **config.model.model_dump(), "num_envs": config.env.num_envs}
    for key in ("num_envs", "hidden_size", *(key for key in given if key in config.training.model_dump())):
        assert given[key] == ours[key], key
    assert given["network"] == config.model.architecture
    assert not config.training.clip_value_loss and config.training.normalize_rewards
    assert given["tune_allocator"] is False
    assert json.loads(SIDES["sb3-pages"].command(case, Path("python"), Path("folder"))[-1])["tune_allocator"]


def test_every_bar_and_side_is_one_that_is_measured() -> None:
    for bar in BARS:
        assert {bar.side, bar.base} <= set(BY_NAME[bar.case].sides)
    for side in SIDES.values():
        assert side.peer == OWN or side.peer in PEERS
    for case in CASES:
        assert set(case.sides) <= set(SIDES)
        rollout = case.num_envs * case.n_steps
        assert case.batch_size is None or rollout % case.batch_size == 0


# --- Programs ---

TALKS = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(os.environ["PIDS"], "w").write(f"{os.getpid()} {child.pid}")
def say(**message):
    print("PEER " + json.dumps(message), flush=True)
print("a warning of some library")
say(parameters=PARAMETERS, threads=2, versions={"torch": "2.13.0"})
for update in range(1, 1000):
    say(timesteps=600 * update, seconds=4.0 * update)
    time.sleep(0.05)
"""


def say(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let a side be this program."""
    side = Side("a program", OWN, lambda case, python, folder: [sys.executable, "-c", code])
    monkeypatch.setitem(SIDES, "plain", side)


@pytest.mark.timeout(60)
def test_a_program_is_measured_and_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    say(monkeypatch, TALKS.replace("PARAMETERS", str(CASE.num_parameters)))
    found = measure("plain", CASE, Window(seconds=20, updates=2))
    assert found.fps == 150.0  # 600 timesteps in 4 seconds, by its own clock
    assert found.updates >= 5 and found.seconds == 4.0 * found.updates
    assert found.versions == {"torch": "2.13.0"}
    assert 1 < found.peak_memory_mb < 1000
    assert 0 <= found.others_percent <= 100
    for pid in (tmp_path / "pids").read_text().split():
        assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


@pytest.mark.timeout(60)
def test_a_program_with_a_network_of_another_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    say(monkeypatch, TALKS.replace("PARAMETERS", str(CASE.num_parameters + 1)))
    with pytest.raises(RunError, match=r"626,257 parameters .* 626,256: no comparison"):
        measure("plain", CASE, Window())


@pytest.mark.timeout(60)
def test_a_program_that_ends_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "import sys; print('one'); sys.exit('no environment of that name')")
    with pytest.raises(PeerUnavailable, match="a program ended with code 1: no environment of that name"):
        measure("plain", CASE, Window())


def test_a_line_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    program = object.__new__(Program)
    program.side, program.output = SIDES["plain"], tmp_path / "stdout"
    lines = ['PEER {"parameters": 5, "versions": {}}', 'PEER {"timesteps": 1024, "seconds": 5.5}']
    program.output.write_text("\n".join([*lines, 'PEER {"timesteps": 20']))
    assert program.points() == [Point(5.5, 1024)]
