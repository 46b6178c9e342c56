"""Command `rlcb export`: write the policy of a run into a folder for a model hub."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rlcb.cli.command import Parser, exit_code


def make_parser() -> Parser:
    parser = Parser(
        description="Export the newest policy of a run as a folder: model.safetensors, config.yaml, "
        "metrics.json, evaluation.json (the newest evaluation, if there is one), and README.md, a model card "
        "that the Hugging Face hub takes. rlcb.load(folder) loads it.",
        epilog="Example: rlcb export runs/ppo_parallel --output exports/ppo_parallel",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="a new or empty folder (default: RUN/export)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def run(arguments: argparse.Namespace) -> int:
    from rlcb.evaluation.export import export_run  # loads torch

    folder = export_run(arguments.run, arguments.output or arguments.run / "export")
    for path in sorted(folder.iterdir()):
        print(path)
    return 0
