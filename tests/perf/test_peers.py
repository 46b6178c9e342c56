"""The comparison with other libraries: rounds, which of them are kept, and what the flags mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perf.peers import __main__ as peers
from perf.peers import results as peers_results
from perf.peers.cases import CASES, SIDES, Case, chosen_cases
from perf.peers.install import PeerUnavailable
from perf.peers.results import Results, code_fingerprint
from perf.peers.run import Measurement, Window
from rlcb import cpu
from rlcb.cli.command import exit_code
from rlcb.cpu import describe_machine
from rlcb.errors import RunError, UsageError
from rlcb.processes.machine_lock import Lock
from rlcb.software import describe_software
from tests.perf.test_peers_report import CASE, ROUNDS, figures

OTHER = next(case for case in CASES if case.name == "ppo-nature")


@pytest.fixture(autouse=True)
def _results_of_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, document and lock of their own, and nothing is installed or waited for."""
    for module in (peers, peers_results):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
        monkeypatch.setattr(module, "DOCUMENT", tmp_path / "docs.md")
    (tmp_path / "docs.md").write_text("<!-- measured: begin -->\n<!-- measured: end -->\n")
    monkeypatch.setenv("RL_BENCHMARK_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(peers, "python_of", lambda peer: Path("python"))
    monkeypatch.setattr(peers, "measure_load", lambda: {"cpu_percent": 0.0, "busiest": []})
    monkeypatch.setattr(cpu, "has_bfloat16", lambda: True)


class Silent(peers.Progress):
    """Keeps what would be printed."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, text: str) -> None:
        pass

    def done(self, text: str) -> None:
        self.lines.append(text)


def measured(side: str, **changes: Any) -> Measurement:
    return Measurement(**{**figures(float(len(side))), **changes})


# --- A round ---


def test_a_round_leaves_out_who_does_not_run_and_goes_on() -> None:
    progress, unavailable = Silent(), dict.fromkeys(("sample-factory", "sample-factory-serial"), "no package")
    tries = []

    def run(side: str, case: Case, window: Window) -> Measurement:
        tries.append(side)
        if side == "cleanrl":
            raise PeerUnavailable("it ended")
        return measured(side)

    found, failed = peers.play_round(CASE, Window(), unavailable, progress, run)
    assert list(found) == [side for side in CASE.sides if side not in (*unavailable, "cleanrl")]
    assert found["sb3"]["fps"] == 3.0
    assert failed == {"cleanrl": "it ended"}
    assert tries.count("cleanrl") == 2 and tries.count("sb3") == 1
    assert set(unavailable) == {"sample-factory", "sample-factory-serial"}
    assert len(progress.lines) == len(CASE.sides)


@pytest.mark.parametrize("side", ["sb3", "plain"])
def test_a_peer_that_fails_once_is_measured_all_the_same(side: str) -> None:
    failures = iter(["it ended"])

    def run(name: str, case: Case, window: Window) -> Measurement:
        if name == side and (reason := next(failures, None)):
            raise PeerUnavailable(reason)
        return measured(name)

    found, failed = peers.play_round(CASE, Window(), {}, Silent(), run)
    assert set(found) == set(CASE.sides) and failed == {}


def test_a_round_ends_if_this_project_does_not_run() -> None:
    def run(side: str, case: Case, window: Window) -> Measurement:
        raise PeerUnavailable("it ended with code 1")

    with pytest.raises(RunError, match="it ended with code 1"):
        peers.play_round(CASE, Window(), {}, Silent(), run)


def test_a_processor_without_bfloat16_leaves_its_row_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peers.impossible((CASE,)) == {}
    monkeypatch.setattr(cpu, "has_bfloat16", lambda: False)
    assert peers.impossible((CASE,)) == {"parallel-bf16": "this processor has no instructions for bfloat16"}


# --- Which rounds are kept ---


def kept(rounds: list[Any], **changes: Any) -> Results:
    """The results of the test with these rounds of CASE."""
    data = {"machine": describe_machine(), "software": describe_software(), "rounds": {CASE.name: rounds}}
    data |= {"code": {CASE.name: code_fingerprint()}, "unavailable": {}, "failed": {}} | changes
    results = Results()
    results.path.write_text(json.dumps(data))
    return Results()


def test_rounds_of_another_machine_are_refused() -> None:
    results = kept(ROUNDS, machine={**describe_machine(), "cpu_model": "another"})
    with pytest.raises(UsageError, match="rounds with cpu_model another"):
        results.require_same([])
    results.forget(CASE)
    results.require_same([])


def test_rounds_of_another_program_are_refused_for_the_case_that_has_them() -> None:
    results = kept(ROUNDS, code={CASE.name: "before"})
    results.require_same([OTHER])
    with pytest.raises(UsageError, match=f"--again --cases {CASE.name}"):
        results.require_same([CASE])
    results.forget(CASE)
    results.require_same([CASE, OTHER])
    kept(ROUNDS).require_same([CASE])


def test_the_fingerprint_is_that_of_the_content_of_what_is_measured(tmp_path: Path) -> None:
    measured = ("src/rlcb/rl/ppo.py", "src/rlcb/kernels/a.cpp", "config/ppo_parallel.yaml", "train.py")
    for name in (*measured, "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one\n")
    before = code_fingerprint(tmp_path)
    (tmp_path / "README.md").write_text("two\n")
    assert code_fingerprint(tmp_path) == before
    for name in measured:
        (tmp_path / name).write_text("two\n")
        assert code_fingerprint(tmp_path) != before
        (tmp_path / name).write_text("one\n")
        assert code_fingerprint(tmp_path) == before


def test_a_round_is_not_kept_if_it_is_of_something_else() -> None:
    results, code = kept(ROUNDS), code_fingerprint()
    assert results.why_not_kept(CASE, ROUNDS[0], code) is None
    assert "changed meanwhile" in str(results.why_not_kept(CASE, ROUNDS[0], "another"))
    versions = {**ROUNDS[0]["sb3"]["versions"], "stable-baselines3": "2.9.3"}
    newer = {**ROUNDS[0], "sb3": {**ROUNDS[0]["sb3"], "versions": versions}}
    assert "sb3 has other versions" in str(results.why_not_kept(CASE, newer, code))
    assert results.why_not_kept(OTHER, newer, code) is None  # of which there is nothing yet
    commit = {
        side: {**each, "versions": {**each["versions"], "git_commit": "x"}}
        for side, each in ROUNDS[0].items()
    }
    assert results.why_not_kept(CASE, commit, code) is None


def test_a_round_of_a_busy_machine_is_not_kept() -> None:
    def busy(*others: float) -> dict[str, Any]:
        return {str(number): figures(1, others=each) for number, each in enumerate(others)}

    results, code = kept([]), code_fingerprint()
    assert results.why_not_kept(CASE, busy(2, 9, 50), code) is None
    assert results.why_not_kept(CASE, busy(2, 12, 50), code) == "other programs took 12 % of the processor"


def test_a_round_without_a_side_that_others_have_is_measured_again() -> None:
    without = {side: each for side, each in ROUNDS[0].items() if side != "sb3"}
    assert kept(ROUNDS).missing(CASE, 3) == 0
    assert kept([without, *ROUNDS[1:]]).missing(CASE, 3) == 1
    assert kept([without] * 3).missing(CASE, 3) == 0  # it never runs here
    assert kept([]).missing(CASE, 3) == 3


def test_a_damaged_file_and_a_document_without_marks_are_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(peers, "measure", lambda *_: pytest.fail("it was measured"))
    (tmp_path / "peers.json").write_text("{")
    for words in ("peers.json cannot be read", "docs.md must have the lines"):
        assert exit_code(lambda: peers.run(peers.make_parser().parse_args([]))) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
        (tmp_path / "docs.md").write_text("no marks")


def test_rounds_are_measured_until_there_are_enough_and_failures_stay_with_their_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(case: Case, window: Window, unavailable: Any, progress: Any) -> Any:
        assert dict(unavailable) == {"cleanrl": "no package"}
        return ROUNDS[0], {"plain": "it ended"}

    def install(peer: str) -> Path:
        if peer == "cleanrl":
            raise PeerUnavailable("no package")
        return Path("python")

    monkeypatch.setattr(peers, "python_of", install)
    monkeypatch.setattr(peers, "play_round", play)
    kept(ROUNDS[:1], unavailable={"sample-factory": "old", "elsewhere": "stays"}, failed={"a2c-nature": {}})
    assert peers.run(peers.make_parser().parse_args(["--cases", CASE.name])) == 0
    data = json.loads((tmp_path / "peers.json").read_text())
    assert len(data["rounds"][CASE.name]) == 3
    assert data["unavailable"] == {"elsewhere": "stays", "cleanrl": "no package"}
    assert data["failed"] == {"a2c-nature": {}, CASE.name: {"plain": "it ended"}}
    assert data["code"] == {CASE.name: code_fingerprint()}
    for path in (tmp_path / "peers.md", tmp_path / "docs.md"):
        assert "### ppo-impala" in path.read_text()


def test_a_study_that_runs_is_not_disturbed(tmp_path: Path, capsys: Any) -> None:
    lock = Lock(tmp_path / "lock", "", "profile")
    lock.acquire(tmp_path / "profiles")
    try:
        assert exit_code(lambda: peers.run(peers.make_parser().parse_args(["--trial"]))) == 2
    finally:
        lock.release()
    error = capsys.readouterr().err
    assert f"the profile in {tmp_path / 'profiles'} (pid" in error and error.count("\n") == 1


# --- Flags ---


def test_cases_are_chosen_by_name_in_their_own_order() -> None:
    assert chosen_cases(None) == CASES
    assert [case.name for case in chosen_cases(["a2c-nature", "ppo-impala"])] == ["ppo-impala", "a2c-nature"]
    with pytest.raises(UsageError, match="--cases ppo-resnet: unknown; there are ppo-impala, "):
        chosen_cases(["ppo-impala", "ppo-resnet"])
    (case,) = chosen_cases(["a2c-nature"], ["cleanrl", "sb3", "parallel"])
    assert case.sides == ("parallel", "sb3")
    assert [each.name for each in chosen_cases(None, ["cleanrl"])] == ["ppo-impala", "ppo-impala-256"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cases", "ppo-resnet"], "--cases ppo-resnet: unknown; there are"),
        (["--sides", "parallel", "sb4"], "--sides sb4: unknown; there are sequential, parallel"),
        (["--rounds", "0"], "--rounds 0: at least 1"),
        (["--case", "ppo-impala"], "unrecognized arguments: --case"),
        (["--rounds", "many"], "invalid int value: 'many'"),
        (["--list", "--trial"], "not allowed with"),
        (["--list", "--cases", "ppo-impala"], "--cases: makes no difference to --list"),
        (["--tables", "--cases", "ppo-impala"], "--cases: makes no difference to --tables"),
        (["--tables", "--again"], "--again: makes no difference to --tables"),
        (["--trial", "--again"], "--again: makes no difference to --trial"),
        (["--trial", "--rounds", "3"], "--rounds: makes no difference to --trial"),
        (["--tables"], "there is no"),
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
