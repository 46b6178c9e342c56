"""The field, side by side: this project against other libraries, on the same machine in the same minutes.

    venv/bin/python -m perf.peers                          # every case, three rounds
    venv/bin/python -m perf.peers --cases ppo-impala --rounds 1
    venv/bin/python -m perf.peers --trial                  # whether everything runs, in short

Every row is a process of its own: it is started, left to train until at least 20 seconds and two updates
after its warm-up have passed, and ended. The sides of a case take turns, and ratios are taken within a round.
A round is kept once it is complete, so the command can be stopped and goes on where it was. The tables go to
perf/results/peers.md and docs/peers.md, the figures to perf/results/peers.json.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from perf.measure import RESULTS
from perf.peers_cases import CASES, OWN, SIDES, Case, chosen_cases
from perf.peers_install import PeerUnavailable, python_of
from perf.peers_report import case_table, report, write_between_marks
from perf.peers_run import Measurement, Window, measure
from perf.training_runs import PROJECT
from src.cli import exit_code
from src.cli_flags import Parser
from src.cpu_utils import describe_machine
from src.errors import RunError, UsageError
from src.metrics import write_json
from src.record import describe_software
from src.study_load import busy_warning, measure_load

NAME = "peers"
DOCUMENT = PROJECT / "docs" / "peers.md"
TRIAL = Window(seconds=0.0, updates=1)


def make_parser() -> Parser:
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--cases", nargs="+", metavar="CASE", help="which workloads (default: all; see --list)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds that each case is to have (default: 3)")
    parser.add_argument(
        "--list", action="store_true", help="say what is measured, and how much of it there is"
    )
    parser.add_argument(
        "--again", action="store_true", help="forget the rounds that there are of these cases"
    )
    parser.add_argument(
        "--trial", action="store_true", help="one short round of each case, which is not kept"
    )
    parser.add_argument("--tables", action="store_true", help="only write the tables anew from the figures")
    return parser


class Results:
    """perf/results/peers.json: rounds by case, what other programs did before each, who did not run."""

    def __init__(self) -> None:
        self.path = RESULTS / f"{NAME}.json"
        self.data: dict[str, Any] = {"machine": {}, "software": {}, "rounds": {}, "unavailable": {}}
        if self.path.exists():
            self.data = json.loads(self.path.read_text(encoding="utf-8"))

    def rounds(self, case: Case) -> list[Any]:
        found: list[Any] = self.data["rounds"].setdefault(case.name, [])
        return found

    def forget(self, case: Case) -> None:
        self.data["rounds"][case.name] = []

    def require_same_machine(self) -> None:
        """Rounds of different machines or versions do not belong into one table. Raises UsageError."""
        if not any(self.data["rounds"].values()):
            return
        now = {**describe_machine(), **describe_software()}
        before = {**self.data["machine"], **self.data["software"]}
        for key in ("cpu_model", "usable_cores", "python", "torch", "numpy", "procgen"):
            if before[key] != now[key]:
                raise UsageError(
                    f"{self.path} has rounds with {key} {before[key]}, and here it is {now[key]}: "
                    "move it away, or measure every case anew with --again"
                )

    def add(self, case: Case, measured: dict[str, Any]) -> None:
        """Keep a complete round and write the tables."""
        self.rounds(case).append(measured)
        self.data |= {"machine": describe_machine(), "software": describe_software()}
        self.write()

    def write(self) -> None:
        """The figures, and the tables that they give."""
        text = report(self.data)
        RESULTS.mkdir(exist_ok=True)
        write_json(self.path, self.data)
        heading = "# The field, side by side: timesteps per second of whole training runs"
        self.path.with_suffix(".md").write_text(f"{heading}\n\n{text}\n", encoding="utf-8")
        write_between_marks(DOCUMENT, text)


class Progress:
    """A bar over the measurements on a terminal, lines elsewhere."""

    def __init__(self, total: int) -> None:
        self.bar = tqdm(total=total, unit="run", disable=not sys.stderr.isatty(), dynamic_ncols=True)

    def begin(self, text: str) -> None:
        self.bar.set_description_str(text)

    def done(self, text: str) -> None:
        tqdm.write(text)
        sys.stdout.flush()
        self.bar.update()


def play_round(
    case: Case,
    window: Window,
    unavailable: dict[str, str],
    progress: Progress,
    run: Callable[[str, Case, Window], Measurement] = measure,
) -> dict[str, Any]:
    """Measure all sides of a case, one after another; who does not run is noted in `unavailable`.

    Raises RunError if this project does not.
    """
    measured = {}
    for name in case.sides:
        if name in unavailable:
            progress.done(f"  {case.name:<12} {SIDES[name].title:<38} left out: {unavailable[name]}")
            continue
        progress.begin(f"{case.name}, {SIDES[name].title}")
        try:
            found = run(name, case, window)
        except PeerUnavailable as reason:
            if SIDES[name].peer == OWN:
                raise RunError(str(reason)) from reason
            unavailable[name] = str(reason)
            progress.done(f"  {case.name:<12} {SIDES[name].title:<38} left out: {reason}")
            continue
        measured[name] = found.to_dict()
        progress.done(
            f"  {case.name:<12} {SIDES[name].title:<38} {found.fps:>8,.0f} timesteps/s "
            f"{found.peak_memory_mb:>7,.0f} MB  ({found.updates} updates in {found.seconds:.0f} s)"
        )
    return measured


def install(cases: tuple[Case, ...]) -> dict[str, str]:
    """Make the environments that are needed; why those sides do not run whose peer cannot be installed."""
    unavailable = {}
    for name in dict.fromkeys(side for case in cases for side in case.sides):
        if SIDES[name].peer == OWN:
            continue
        try:
            python_of(SIDES[name].peer)
        except PeerUnavailable as reason:
            unavailable[name] = str(reason)
    return unavailable


def run_trial(cases: tuple[Case, ...]) -> int:
    unavailable = install(cases)
    progress = Progress(sum(len(case.sides) for case in cases))
    for case in cases:
        measured = play_round(case, TRIAL, unavailable, progress)
        tqdm.write(f"\n{case.describe()}\n\n{case_table(case, [measured], unavailable)}\n")
    return 0


def run_rounds(cases: tuple[Case, ...], rounds: int, again: bool) -> int:
    results = Results()
    for case in cases if again else ():
        results.forget(case)
    results.require_same_machine()
    results.data["unavailable"] = install(cases)
    missing = {case: max(0, rounds - len(results.rounds(case))) for case in cases}
    progress = Progress(sum(len(case.sides) * count for case, count in missing.items()))
    for case, count in missing.items():
        for _ in range(count):
            warning = busy_warning(measure_load())
            if warning is not None:
                tqdm.write(warning)
            results.add(case, play_round(case, Window(), results.data["unavailable"], progress))
    return 0


def list_cases() -> int:
    results = Results()
    for case in CASES:
        print(f"{case.name:<12} {case.describe()}; {len(results.rounds(case))} rounds measured")
        for side in case.sides:
            print(f"    {SIDES[side].title}")
    return 0


def run(arguments: argparse.Namespace) -> int:
    if arguments.rounds < 1:
        raise UsageError(f"--rounds {arguments.rounds}: at least 1")
    cases = chosen_cases(arguments.cases)
    if arguments.list:
        return list_cases()
    if arguments.trial:
        return run_trial(cases)
    if arguments.tables:
        results = Results()
        if not results.path.exists():
            raise UsageError(f"--tables: there is no {results.path} yet")
        results.write()
        return 0
    return run_rounds(cases, arguments.rounds, arguments.again)


def stop(number: int, _: Any) -> None:
    """End as Ctrl-C does, so that the program that is being measured is ended too."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(exit_code(lambda: run(make_parser().parse_args())))
