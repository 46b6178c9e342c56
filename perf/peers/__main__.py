"""The field, side by side: this project against other libraries, on the same machine in the same minutes.

    venv/bin/python -m perf.peers                          # every case, three rounds
    venv/bin/python -m perf.peers --cases ppo-impala --rounds 1
    venv/bin/python -m perf.peers --trial                  # whether everything runs, in short

Every row is a process of its own: it is started, left to train until at least 20 seconds and two updates
after its warm-up have passed, and ended. The sides of a case take turns, and ratios are taken within a round.
A round is kept once it is complete, so the command can be stopped and goes on where it was; rounds of a case
are of one program, so after a change of the code the case begins anew with --again. The tables go to
perf/results/peers.md and docs/peers.md, the figures to perf/results/peers.json.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tqdm import tqdm

from perf.measure import RESULTS
from perf.peers.cases import BFLOAT16, CASES, OWN, SIDES, Case, chosen_cases
from perf.peers.install import PeerUnavailable, python_of
from perf.peers.report import case_table, require_marks
from perf.peers.results import DOCUMENT, Results, code_fingerprint
from perf.peers.run import Measurement, Window, measure
from rlcb import cpu
from rlcb.cli.command import Parser, exit_code
from rlcb.errors import RunError, UsageError
from rlcb.processes.machine_load import busy_warning, measure_load
from rlcb.processes.machine_lock import Lock, machine_lock_path

ROUNDS = 3
TRIAL = Window(seconds=0.0, updates=1)
BUSY = "measurements at once would slow each other down"
TRIES = 2  # of a peer in a round: one hiccup is not to leave it out


def make_parser() -> Parser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", nargs="+", metavar="CASE", help="which workloads (default: all; see --list)"
    )
    parser.add_argument(
        "--sides", nargs="+", metavar="SIDE", help=f"which programs (default: all): {', '.join(SIDES)}"
    )
    parser.add_argument("--rounds", type=int, help=f"rounds that each case is to have (default: {ROUNDS})")
    parser.add_argument(
        "--again", action="store_true", help="forget the rounds that there are of these cases"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--list", action="store_true", help="say what is measured, and how much of it there is"
    )
    instead.add_argument(
        "--trial", action="store_true", help="one short round of each case, which is not kept"
    )
    instead.add_argument("--tables", action="store_true", help="only write the tables anew from the figures")
    return parser


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
    unavailable: Mapping[str, str],
    progress: Progress,
    run: Callable[[str, Case, Window], Measurement] = measure,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure all sides of a case but those `unavailable`, one after another. Returns the figures by side,
    and why those have none that did not get through this round.

    Raises RunError if this project does not.
    """
    measured: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in case.sides:
        title = f"  {case.name:<14} {SIDES[name].title:<38}"
        if name in unavailable:
            progress.done(f"{title} left out: {unavailable[name]}")
            continue
        progress.begin(f"{case.name}, {SIDES[name].title}")
        try:
            found = try_side(name, case, window, run)
        except PeerUnavailable as reason:
            failed[name] = str(reason)
            progress.done(f"{title} left out: {reason}")
            continue
        measured[name] = found.to_dict()
        progress.done(
            f"{title} {found.fps:>8,.0f} timesteps/s {found.peak_memory_mb:>7,.0f} MB  "
            f"({found.updates} updates in {found.seconds:.0f} s)"
        )
    return measured, failed


def try_side(
    name: str, case: Case, window: Window, run: Callable[[str, Case, Window], Measurement]
) -> Measurement:
    """A peer is tried TRIES times. Raises PeerUnavailable, of this project's own scripts RunError."""
    for left in reversed(range(TRIES)):
        try:
            return run(name, case, window)
        except PeerUnavailable as reason:
            if SIDES[name].own_rows:
                raise RunError(str(reason)) from reason
            if not left:
                raise
            tqdm.write(f"  {reason}; once more")
    raise AssertionError("the last try returns or raises")


def impossible(cases: tuple[Case, ...]) -> dict[str, str]:
    """Make the environments that are needed; why those sides do not run that cannot run here."""
    found = {}
    for name in dict.fromkeys(side for case in cases for side in case.sides):
        if name in BFLOAT16 and not cpu.has_bfloat16():
            found[name] = "this processor has no instructions for bfloat16"
        elif SIDES[name].peer != OWN:
            try:
                python_of(SIDES[name].peer)
            except PeerUnavailable as reason:
                found[name] = str(reason)
    return found


def run_trial(cases: tuple[Case, ...]) -> int:
    unavailable = impossible(cases)
    progress = Progress(sum(len(case.sides) for case in cases))
    for case in cases:
        measured, failed = play_round(case, TRIAL, unavailable, progress)
        tqdm.write(f"\n{case.describe()}\n\n{case_table(case, [measured], {**unavailable, **failed})}\n")
    return 0


def run_rounds(cases: tuple[Case, ...], rounds: int, again: bool) -> int:
    """Returns 1 if a round was not kept."""
    require_marks(DOCUMENT)
    results = Results()
    for case in cases if again else ():
        results.forget(case)
    missing = {case: results.missing(case, rounds) for case in cases}
    results.require_same([case for case, count in missing.items() if count])
    unavailable = impossible(cases)
    results.note_unavailable(cases, unavailable)
    progress, dropped = Progress(sum(len(case.sides) * count for case, count in missing.items())), 0
    for case, count in missing.items():
        for _ in range(count):
            warning = busy_warning(measure_load())
            if warning is not None:
                tqdm.write(warning)
            code = code_fingerprint()
            measured, failed = play_round(case, Window(), unavailable, progress)
            why = results.why_not_kept(case, measured, code)
            if why is None:
                results.add(case, measured, failed, code)
            else:
                dropped += 1
                tqdm.write(f"this round of {case.name} is not kept: {why}")
    return int(dropped > 0)


def list_cases() -> int:
    results = Results()
    for case in CASES:
        print(f"{case.name:<14} {case.describe()}; {len(results.rounds(case))} rounds measured")
        for side in case.sides:
            print(f"    {SIDES[side].title}")
    return 0


def write_tables() -> int:
    results = Results()
    if not results.path.exists():
        raise UsageError(f"--tables: there is no {results.path} yet")
    results.write()
    return 0


def refuse_unused(arguments: argparse.Namespace) -> None:
    """Raises UsageError for a flag that would be ignored."""
    instead = next((name for name in ("list", "tables", "trial") if getattr(arguments, name)), None)
    unused: dict[str, tuple[str, ...]] = {
        "list": ("cases", "sides", "rounds", "again"),
        "tables": ("cases", "sides", "rounds", "again"),
    }
    unused["trial"] = ("rounds", "again")
    for name in unused.get(instead or "", ()):
        if getattr(arguments, name) not in (None, False):
            raise UsageError(f"--{name}: makes no difference to --{instead}; leave one of them out")


def run(arguments: argparse.Namespace) -> int:
    refuse_unused(arguments)
    rounds = ROUNDS if arguments.rounds is None else arguments.rounds
    if rounds < 1:
        raise UsageError(f"--rounds {rounds}: at least 1")
    cases = chosen_cases(arguments.cases, arguments.sides)
    if arguments.list:
        return list_cases()
    if arguments.tables:
        return write_tables()
    lock = Lock(machine_lock_path(), BUSY, "comparison with other libraries")
    lock.acquire(RESULTS)
    try:
        return run_trial(cases) if arguments.trial else run_rounds(cases, rounds, arguments.again)
    finally:
        lock.release()


def stop(number: int, _: Any) -> None:
    """End as Ctrl-C does, so that the program that is being measured is ended too."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(exit_code(lambda: run(make_parser().parse_args())))
