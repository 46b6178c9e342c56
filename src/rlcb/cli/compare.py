"""Command `rlcb compare` (compare_results.py): compare runs and write the results to files."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlcb.cli.command import Parser, count, exit_code
from rlcb.cli.plot import add_formats
from rlcb.errors import RunError, UsageError

if TYPE_CHECKING:  # numpy, scipy and matplotlib: not needed for --help
    from rlcb.comparison.analysis import Comparison, Options
    from rlcb.comparison.curves import Panel
    from rlcb.comparison.runs import Run


def make_parser() -> Parser:
    parser = Parser(
        description="Compare training runs: tables with statistics over seeds, plots, and one page for the "
        "browser.",
        epilog="Runs with one configuration and different seeds form a group. Beside the plot lie "
        "<name>_report.txt, <name>.md, <name>.csv (a row for each run), <name>_curves.csv (a row for each "
        "update), <name>.json and <name>.html. "
        "Examples: compare_results.py --sequential runs/ppo_seq --parallel runs/ppo_par; "
        "compare_results.py benchmarks/study --baseline 'PPO sequential' --threshold 8",
    )
    add = parser.add_argument
    runs = parser.add_argument_group("which runs: folders of runs, folders above several, or globs")
    runs.add_argument("folders", nargs="*", metavar="DIR", help="any runs")
    runs.add_argument("--runs", nargs="+", default=[], metavar="DIR", help="any runs, the same as DIR")
    runs.add_argument("--sequential", nargs="+", default=[], metavar="DIR", help="sequential runs")
    runs.add_argument("--parallel", nargs="+", default=[], metavar="DIR", help="parallel runs")
    add(
        "--output",
        type=Path,
        default=Path("comparison.png"),
        metavar="FILE",
        help="the plot: png, svg or pdf; the other files get its name (default: %(default)s)",
    )
    add_formats(parser)
    add(
        "--baseline",
        metavar="TEXT",
        help="group that speed is held against: its label, a part of it, or the folder of a run "
        "(default: the first group)",
    )
    add(
        "--threshold",
        nargs="+",
        default=[],
        metavar="X",
        help="also tell when a mean return of X was reached; coinrun=8 starpilot=10 for several games",
    )
    add(
        "--reference",
        action="store_true",
        help="show the published learning curves of PPO (Procgen, easy) with the runs",
    )
    _add_printing(parser)
    _add_bootstrap(parser)
    return parser


def _add_printing(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--full",
        action="store_true",
        help="print all tables, tests and methods (as in <name>_report.txt) instead of the short table",
    )
    add(
        "--template",
        action="store_true",
        help="print the BENCHMARK RESULTS summary instead of the tables",
    )


def _add_bootstrap(parser: Parser) -> None:
    add = parser.add_argument
    add("--bootstrap-samples", type=count, metavar="N", help="bootstrap samples per interval (default: 2000)")
    add("--confidence-seed", type=count, metavar="N", help="seed of the bootstrap intervals")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (2 if there is nothing to compare)."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def run(arguments: argparse.Namespace) -> int:
    from rlcb.plots.save import picture_paths

    outputs = picture_paths(arguments.output, arguments.format)
    options = read_options(arguments)
    comparison = load(arguments, options)

    from rlcb.comparison.summary import summary
    from rlcb.comparison.text_report import terminal

    filled = summary(comparison) if arguments.template else None
    written = write_outputs(comparison, outputs, filled)
    print(filled if filled is not None else terminal(comparison, arguments.full))
    print()
    for path in written:
        print(f"{path.suffix.lstrip('.').upper() + ':':<6}{path}")
    return 0


def read_options(arguments: argparse.Namespace) -> Options:
    """Return the options of the comparison. Raises UsageError for invalid values."""
    from rlcb.comparison.analysis import Options
    from rlcb.comparison.statistics import SAMPLES, SEED, Bootstrap

    samples = SAMPLES if arguments.bootstrap_samples is None else arguments.bootstrap_samples
    seed = SEED if arguments.confidence_seed is None else arguments.confidence_seed
    if not 100 <= samples <= 1_000_000:
        raise UsageError(f"--bootstrap-samples {samples}: must be between 100 and 1,000,000")
    if seed < 0:
        raise UsageError(f"--confidence-seed {seed}: must not be negative")
    thresholds = dict(read_threshold(text) for text in arguments.threshold)
    if len(thresholds) < len(arguments.threshold):
        raise UsageError("--threshold: two values for the same game")
    return Options(arguments.baseline, thresholds, arguments.reference, Bootstrap(samples, seed))


def read_threshold(text: str) -> tuple[str, float]:
    """Parse thresholds: `8` applies to all games (stored under the empty name), `coinrun=8` to one game."""
    from rlcb.comparison.groups import game_name

    game, separator, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (separator and not game):
        expected = "expected a return, such as 8, or a game and a return, such as coinrun=8"
        raise UsageError(f"--threshold {text}: {expected}")
    return (game_name(game) if game else ""), value


def load(arguments: argparse.Namespace, options: Options) -> Comparison:
    """Find, read and compare the runs. Raises UsageError if none can be used."""
    from rlcb.comparison.analysis import compare
    from rlcb.comparison.folders import find_runs
    from rlcb.comparison.groups import group_runs
    from rlcb.comparison.lost import LostRun, identify
    from rlcb.comparison.runs import Unusable, load_runs
    from rlcb.study.folder import missing_runs
    from rlcb.study.rounds import decisions_of

    named = [
        ("sequential", arguments.sequential),
        ("parallel", arguments.parallel),
        (None, [*arguments.folders, *arguments.runs]),
    ]
    patterns = [pattern for _, each in named for pattern in each]
    wanted = [mode for mode, each in named for _ in each]
    if not patterns:
        raise UsageError(
            "no runs are given: name their folders, or use --sequential and --parallel (see --help)"
        )
    runs: list[tuple[int, Run]] = []
    skipped: list[LostRun] = []
    first: dict[tuple[str | None, Path], int] = {}
    found = find_runs(patterns, missing_runs)
    for (place, path), run in zip(found.runs, load_runs([path for _, path in found.runs])):
        if isinstance(run, Unusable):
            skipped.append(identify(path, str(run)))
            continue
        mode = wanted[place]
        if mode is not None and (run.mode == "sequential") != (mode == "sequential"):
            raise UsageError(f"--{mode} {patterns[place]}: {path} is a {run.mode} run")
        study = path.resolve().parent
        if study in found.studies:  # in whatever order a shell named its runs
            place = first.setdefault((mode, study), place)
        runs.append((place, run))
    skipped += found.left_out
    for lost in skipped:
        print(f"left out: {lost.path}: {lost.reason}", file=sys.stderr)
    if not runs:
        problems = "; ".join(f"{lost.path}: {lost.reason}" for lost in skipped)
        raise UsageError(f"no run can be used ({problems})")
    if len(found.studies) == 1 and {path.resolve().parent for _, path in found.runs} == found.studies:
        options = replace(options, decisions=decisions_of(*found.studies))
    return compare(group_runs(runs), options, skipped)


def write_outputs(comparison: Comparison, outputs: Sequence[Path], filled: str | None) -> list[Path]:
    """Write the plot to `outputs` and the other files beside them; return all paths. Raises RunError."""
    from rlcb.comparison.curves import game_panels, score_panels
    from rlcb.comparison.exports import json_data
    from rlcb.comparison.page import page
    from rlcb.comparison.text_report import markdown, report
    from rlcb.comparison.tidy import curves_text, finals_text
    from rlcb.files import write_json

    output = outputs[0]
    panels = {game.env: game_panels(game, comparison.options.bootstrap) for game in comparison.games}
    panels[""] = score_panels(comparison)
    beside: dict[Path, Callable[[], str]] = {
        output.with_name(f"{output.stem}_report.txt"): lambda: report(comparison),
        output.with_suffix(".md"): lambda: markdown(comparison, output.name),
        output.with_suffix(".csv"): lambda: finals_text(comparison),
        output.with_name(f"{output.stem}_curves.csv"): lambda: curves_text(comparison),
        output.with_suffix(".html"): lambda: page(comparison, panels),
    }
    if filled is not None:
        beside[output.with_name(f"{output.stem}_sheet.txt")] = lambda: f"{filled}\n"
    written = write_figures(comparison, panels, outputs)
    try:
        for path, text in beside.items():
            _write_text(path, text())
        write_json(output.with_suffix(".json"), json_data(comparison, panels))
    except OSError as error:
        raise RunError(f"cannot write to {output.parent}: {error.strerror or error}") from error
    return [*written, *beside, output.with_suffix(".json")]


def _write_text(path: Path, text: str) -> None:
    from rlcb.files import write_atomically

    write_atomically(path, text.encode("utf-8", "surrogateescape"))


def write_figures(
    comparison: Comparison, panels: dict[str, list[Panel]], outputs: Sequence[Path]
) -> list[Path]:
    """Draw and save the plots, one per game and with several games one over all; return their paths."""
    from rlcb.comparison.figure import draw_game, draw_games
    from rlcb.plots.save import save_figure

    each = {f"_{game.game}": draw_game(comparison, game, panels[game.env]) for game in comparison.games}
    figures = {"": draw_games(comparison, panels)} | each if len(each) > 1 else dict(zip([""], each.values()))
    written = []
    for ending, figure in figures.items():
        name = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in ending)
        for output in outputs:
            written.append(output.with_name(f"{output.stem}{name}{output.suffix}"))
            save_figure(figure, written[-1])
    return written
