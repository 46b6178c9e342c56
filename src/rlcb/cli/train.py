"""The command `rlcb train`, which train.py and the training scripts call: from command line to run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rlcb.cli.command import Parser, exit_code
from rlcb.cli.completion import completing, typed_words
from rlcb.cli.flags import add_choice, apply_budget, apply_flags, apply_workers, make_parser, read_settings
from rlcb.cli.prepared_run import prepare_run
from rlcb.config.algorithms import ALGORITHMS, WHY_NOT
from rlcb.config.config import Config
from rlcb.config.sourced import SourcedSettings
from rlcb.config.yaml_file import build_config
from rlcb.errors import UsageError
from rlcb.parallel.calibration import with_split_of
from rlcb.training.run_folder import CONFIG_FILE, RunFolder, config_of_run, require_same_run
from rlcb.training.run_spec import RunSpec
from rlcb.training.tracking import require_tracker


def main(
    algorithm: str | None = None,
    mode: str | None = None,
    timed: bool | None = None,
    argv: Sequence[str] | None = None,
) -> int:
    """Run a training command and return its exit code.

    A script for one algorithm and mode names both, and says whether it is `timed`. Without them, the flags
    `--algorithm` and `--mode` choose (default: ppo parallel), and the run ends after `--duration`, after
    `--total-timesteps`, or else as its configuration file says.
    """
    words = typed_words() if completing() else list(sys.argv[1:] if argv is None else argv)
    if algorithm is not None and mode is not None:
        return exit_code(lambda: run(make_parser(algorithm, mode, timed).parse_args(words)))
    chosen = argparse.Namespace(algorithm="ppo", mode="parallel")
    code = exit_code(lambda: read_choice(words, chosen))
    if code and not completing():
        return code
    if chosen.mode == "distributed":
        from rlcb.cli.train_distributed import main as train_distributed

        return train_distributed(chosen.algorithm, words, any_algorithm=True)
    return main(chosen.algorithm, chosen.mode, None, words)


def read_choice(words: Sequence[str], chosen: argparse.Namespace) -> int:
    """Read `--algorithm` and `--mode` into `chosen`; return 0. Raises UsageError if there is no such mode."""
    parser = Parser(add_help=False)
    add_choice(parser)
    parser.parse_known_args(words, chosen)
    if chosen.mode not in ALGORITHMS[chosen.algorithm].modes:
        reason = WHY_NOT[chosen.algorithm, chosen.mode]
        raise UsageError(f"--algorithm {chosen.algorithm} has no --mode {chosen.mode}: {reason}")
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Train as the flags say; return the exit code. Raises UsageError and RunError."""
    return run_spec(make_spec(arguments))


def make_spec(arguments: argparse.Namespace) -> RunSpec:
    """Return the run that the flags describe, and set this process's threads and allocator for it.

    Raises UsageError. Touches nothing on disk.
    """
    if arguments.resume:
        config, folder = resolve_resumed(arguments)
    else:
        config = resolve_config(arguments)
        folder = RunFolder(arguments.output_dir, config)
        if not arguments.overwrite and arguments.output_dir is not None:
            folder.refuse_if_occupied()
    folder.refuse_if_in_use()
    require_tracker(config.logging.track)
    return prepare_run(arguments, config, folder, arguments.resume)


def run_spec(spec: RunSpec) -> int:
    """Train with worker processes if the mode is parallel, else in this process; return the exit code.

    Raises UsageError and RunError.
    """
    if spec.config.mode == "parallel":
        from rlcb.parallel.supervisor import train_in_workers as train
    else:
        from rlcb.training.run import train_in_one_process as train  # loads torch
    return train(spec)


def resolve_config(arguments: argparse.Namespace) -> Config:
    """Return the configuration of a new run: the files, then the flags, then the limit of the run.

    Raises UsageError.
    """
    data = read_settings(arguments)
    apply_flags(data, arguments)
    apply_workers(data, arguments)
    apply_budget(data, arguments)
    return build_config(data)


def resolve_resumed(arguments: argparse.Namespace) -> tuple[Config, RunFolder]:
    """Return the configuration and the folder of a run to resume.

    Raises UsageError if there is no run in the folder, or if the flags would make it a different run.
    """
    root = arguments.output_dir
    if root is None:
        raise UsageError("--resume needs --output-dir, the folder of the run to continue")
    before = config_of_run(root)
    algorithm, mode = arguments.algorithm, arguments.mode
    if (before.algorithm, before.mode) != (algorithm, mode):
        raise UsageError(
            f"{root} holds a run of {before.algorithm} {before.mode}; this script runs {algorithm} {mode}"
        )
    if arguments.config is not None:
        now = resolve_config(arguments)
    else:
        data = SourcedSettings.of(before.model_dump(mode="json"), str(root / CONFIG_FILE))
        apply_flags(data, arguments)
        apply_workers(data, arguments)
        now = build_config(data)
    now = with_split_of(now, before)
    require_same_run(before, now)
    return now, RunFolder(root, before)
