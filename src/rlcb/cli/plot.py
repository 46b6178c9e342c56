"""The command `rlcb plot` and plot_results.py: draw the training curves of one or many runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rlcb.cli.command import Parser, exit_code
from rlcb.errors import UsageError

AXES = ("timesteps", "hours")
FORMATS = ("png", "svg", "pdf")


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the curves as the flags say; return the exit code."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def make_parser() -> Parser:
    """Return the parser of the command's flags."""
    parser = Parser(
        description="Draw the training curves of one run (return, FPS, losses and entropy), or of many runs "
        "in one picture, with the mean of runs that differ only in their seed.",
        epilog="Examples: plot_results.py runs/ppo; plot_results.py runs/ppo runs/a2c --x hours; "
        "plot_results.py benchmarks/my_study --output curves --format pdf svg",
    )
    add = parser.add_argument
    add(
        "runs",
        nargs="*",
        metavar="RUN",
        help="folders of runs, folders above several, globs, or metrics.jsonl",
    )
    add("--log-file", metavar="FILE", help="metrics.jsonl of a run, or the run's folder; the same as RUN")
    default = "training_curves.png, for one run in its folder"
    add("--output", type=Path, metavar="FILE", help=f"png, svg or pdf (default: {default})")
    add_formats(parser)
    add("--x", choices=AXES, default=AXES[0], help="horizontal axis (default: %(default)s)")
    return parser


def add_formats(parser: Parser) -> None:
    """Add the flag --format."""
    text = "write the picture in these formats, beside each other (default: by the suffix of --output)"
    parser.add_argument("--format", nargs="+", choices=FORMATS, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Draw the picture and print its path."""
    words = [*arguments.runs, *([arguments.log_file] if arguments.log_file is not None else [])]
    if not words:
        raise UsageError("no run is given: name its folder (see --help)")
    from rlcb.plots.training_curves import ROWS_FILE, plot_run  # numpy and matplotlib: not needed for --help

    path = Path(words[0])
    inside = [*path.glob(ROWS_FILE), *path.glob(f"logs/*/{ROWS_FILE}")]
    if len(words) == 1 and (inside or path.is_file()):
        written = plot_run(path, arguments.output, arguments.x, arguments.format)
    else:
        written = plot_runs(words, arguments.output, arguments.x, arguments.format)
    for each in written:
        print(f"Training curves: {each}")
    return 0


def plot_runs(words: Sequence[str], output: Path | None, x: str, formats: Sequence[str] | None) -> list[Path]:
    """Draw the runs that `words` name in one picture and return its files.

    Runs without usable results are left out with a line on stderr. Raises UsageError if no run can be drawn.
    """
    from rlcb.comparison.folders import find_runs
    from rlcb.comparison.groups import group_runs
    from rlcb.comparison.overlay import draw_runs
    from rlcb.comparison.runs import Unusable, load_runs
    from rlcb.plots.save import picture_paths, save_figure
    from rlcb.plots.training_curves import CURVES_FILE, plot_run

    outputs = picture_paths(output or Path(CURVES_FILE), formats)
    found = find_runs([_folder(word) for word in words], lambda study, runs: [])
    if len(found.runs) == 1:
        return plot_run(found.runs[0][1], output, x, formats)
    runs = []
    for (place, path), each in zip(found.runs, load_runs([path for _, path in found.runs])):
        if isinstance(each, Unusable):
            print(f"left out: {path}: {each}", file=sys.stderr)
        else:
            runs.append((place, each))
    if not runs:
        raise UsageError("no run can be drawn: none has usable results; a failed run can be drawn alone")
    figure = draw_runs(group_runs(runs), x)
    for picture in outputs:
        save_figure(figure, picture)
    return outputs


def _folder(word: str) -> str:
    """Return the run's folder for a metrics.jsonl; other words unchanged. Raises UsageError."""
    from rlcb.plots.training_curves import locate

    if not Path(word).is_file():
        return word
    root = locate(Path(word))[1]
    if root is None:
        raise UsageError(f"{word} lies in no run: several runs are drawn from their folders")
    return str(root)
