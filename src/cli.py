"""How a training script goes from its command line to a run."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from src import cpu_utils
from src.calibration import with_split_of
from src.cli_flags import apply_budget, apply_flags, apply_workers, make_parser
from src.config import Config
from src.config_file import build_config, read_config_file
from src.errors import EXIT_FAILED, EXIT_USAGE, RunError, UsageError
from src.project import default_config_path
from src.run_folder import RunFolder, config_of_run, require_same_run


def resolve_config(arguments: argparse.Namespace, algorithm: str, mode: str, timed: bool) -> Config:
    """The configuration of a new run: file, flags, budget. Raises UsageError."""
    path = arguments.config or default_config_path(algorithm, mode)
    data = read_config_file(path)
    for key, ours in (("algorithm", algorithm), ("mode", mode)):
        if data.setdefault(key, ours) != ours:
            raise UsageError(f"{path}: {key} = {data[key]!r}, but this script runs {algorithm} {mode}")
    apply_flags(data, arguments)
    apply_workers(data, arguments, mode)
    apply_budget(data, arguments, timed)
    return build_config(data, str(path))


def resolve_resumed(
    arguments: argparse.Namespace, algorithm: str, mode: str, timed: bool
) -> tuple[Config, RunFolder]:
    """Configuration and folder of a run that goes on. Raises UsageError if there is none or it would be
    another run."""
    root = arguments.output_dir
    if root is None:
        raise UsageError("--resume needs --output-dir, the folder of the run to continue")
    before = config_of_run(root)
    if (before.algorithm, before.mode) != (algorithm, mode):
        raise UsageError(
            f"{root} holds a run of {before.algorithm} {before.mode}; this script runs {algorithm} {mode}"
        )
    if arguments.config is not None:
        now = resolve_config(arguments, algorithm, mode, timed)
    else:
        data = before.model_dump(mode="json")
        apply_flags(data, arguments)
        apply_workers(data, arguments, mode)
        now = build_config(data, str(root))
    now = with_split_of(now, before)
    require_same_run(before, now)
    return now, RunFolder(root, before)


def main(algorithm: str, mode: str, timed: bool, argv: Sequence[str] | None = None) -> int:
    """Run a training script; returns its exit code."""
    return exit_code(
        lambda: run(make_parser(algorithm, mode, timed).parse_args(argv), algorithm, mode, timed)
    )


def exit_code(work: Callable[[], int]) -> int:
    """The exit code of a script that does `work`. Wrong input is one line on stderr and code 2."""
    logging.basicConfig(format="%(levelname)s: %(message)s")
    program = Path(sys.argv[0]).name
    try:
        return work()
    except UsageError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except RunError as error:
        print(f"{program}: failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130


def prepare_process(
    num_threads: int | None, tune_allocator: bool = True, default_threads: int | None = None
) -> int:
    """Set this process's threads and allocator, before torch is loaded; returns the number of threads."""
    chosen = cpu_utils.choose_threads(num_threads, default_threads)
    cpu_utils.set_thread_environment(chosen)
    if tune_allocator:
        cpu_utils.tune_allocator()
    return chosen


def run(arguments: argparse.Namespace, algorithm: str, mode: str, timed: bool) -> int:
    if arguments.resume:
        config, folder = resolve_resumed(arguments, algorithm, mode, timed)
    else:
        config = resolve_config(arguments, algorithm, mode, timed)
        folder = RunFolder(arguments.output_dir, config)
        if not arguments.overwrite and arguments.output_dir is not None:
            folder.refuse_if_occupied()
    # Before torch is loaded, which importing src.run does.
    default_threads = 1 if mode == "parallel" else None  # one process a core, or one process for all cores
    num_threads = prepare_process(
        config.hardware.num_threads, config.hardware.tune_allocator, default_threads
    )
    if mode == "parallel":
        from src.crew import train_in_workers as train
    else:
        from src.run import train_in_one_process as train

    return train(config, folder, num_threads, arguments.resume, arguments.overwrite)
