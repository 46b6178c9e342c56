"""How a training script goes from its command line to a run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rlcb.cli.command import exit_code
from rlcb.cli.flags import apply_budget, apply_flags, apply_workers, make_parser
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config, read_config_file
from rlcb.cpu import prepare_process
from rlcb.errors import UsageError
from rlcb.parallel.calibration import with_split_of
from rlcb.paths import default_config_path
from rlcb.training.run_folder import RunFolder, config_of_run, require_same_run
from rlcb.training.run_spec import RunSpec


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


def run(arguments: argparse.Namespace, algorithm: str, mode: str, timed: bool) -> int:
    if arguments.resume:
        config, folder = resolve_resumed(arguments, algorithm, mode, timed)
    else:
        config = resolve_config(arguments, algorithm, mode, timed)
        folder = RunFolder(arguments.output_dir, config)
        if not arguments.overwrite and arguments.output_dir is not None:
            folder.refuse_if_occupied()
    # Before torch is loaded, which importing rlcb.training.run does.
    default_threads = 1 if mode == "parallel" else None  # one process a core, or one process for all cores
    num_threads = prepare_process(
        config.hardware.num_threads, config.hardware.tune_allocator, default_threads
    )
    if mode == "parallel":
        from rlcb.parallel.supervisor import train_in_workers as train
    else:
        from rlcb.training.run import train_in_one_process as train

    return train(RunSpec(config, folder, num_threads, arguments.resume, arguments.overwrite))
