"""Command `rlcb tensorboard`: show runs in TensorBoard under short names, also those that start meanwhile.

TensorBoard names a run after its path below one folder, such as
`runs/ppo_parallel_procgen-coinrun-v0_seed42_20261129-101611/logs/PPO_Parallel`. Here that folder is a
temporary one with a link `ppo_parallel_coinrun_seed42_1129-101611` for each run.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlcb.cli.command import Parser, exit_code

REFRESH_SECONDS = 5.0
FOLDERS = (Path("runs"), Path("benchmarks"))


def make_parser() -> Parser:
    parser = Parser(
        description="Show runs in the browser, under short names, also while they train.",
        epilog="Further flags go to TensorBoard: rlcb tensorboard runs --port 6007",
    )
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="DIR", help="folders of runs (default: runs benchmarks)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return exit_code(lambda: run(*make_parser().parse_known_args(argv)))


def run(arguments: argparse.Namespace, flags: list[str]) -> int:
    """Start TensorBoard and refresh the links until it ends; return its exit code."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends TensorBoard as well
    with tempfile.TemporaryDirectory(prefix="rlcb_tensorboard_") as folder:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, *flags]
        link_runs(arguments.folders or FOLDERS, Path(folder))
        process = subprocess.Popen(command)
        try:
            while True:
                try:
                    return process.wait(REFRESH_SECONDS)
                except subprocess.TimeoutExpired:
                    link_runs(arguments.folders or FOLDERS, Path(folder))
        finally:
            process.terminate()
            process.wait()


def link_runs(folders: Iterable[Path], target: Path) -> None:
    """Add a link to `target` for each run below `folders` that has none yet."""
    for folder in folders:
        for events in sorted(folder.glob("**/logs/*/events.out.tfevents.*")):
            logs = events.parent.absolute()
            link = target / short_name(logs.parents[1].relative_to(folder.absolute()), folder)
            if not link.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(logs)


def short_name(run: Path, folder: Path) -> str:
    """Return the name of a run from its path below `folder`: without what all names share, such as
    `procgen-`, `-v0` and the year; `study/run` for a run of a study, the folder's own name for a single run.
    """
    text = folder.resolve().name if run == Path() else run.as_posix()
    return re.sub(r"_\d{4}(\d{4}-\d{6})", r"_\1", re.sub(r"procgen-(\w+)-v0", r"\1", text))
