"""The command `rlcb plot` and plot_results.py: draw the training curves of a run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rlcb.cli.command import Parser, exit_code

AXES = ("timesteps", "hours")


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the curves as the flags say; return the exit code."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def make_parser() -> Parser:
    """Return the parser of the command's flags."""
    parser = Parser(description="Draw the training curves of a run: return, FPS, losses and entropy.")
    source, target = "metrics.jsonl of a run, or the run's folder", "training_curves.png in the run's folder"
    parser.add_argument("--log-file", type=Path, required=True, metavar="FILE", help=source)
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"png, svg or pdf (default: {target})")
    parser.add_argument("--x", choices=AXES, default=AXES[0], help="horizontal axis (default: %(default)s)")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Draw the picture and print its path."""
    from rlcb.plots.training_curves import plot_run  # numpy and matplotlib: not needed for --help

    print(f"Training curves: {plot_run(arguments.log_file, arguments.output, arguments.x)}")
    return 0
