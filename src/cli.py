"""The command line that every training script shares."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from src import cpu_utils
from src.config import Config
from src.config_file import build_config, parse_yaml, read_config_file, set_value
from src.errors import EXIT_FAILED, EXIT_USAGE, RunError, UsageError
from src.run_folder import RunFolder, config_of_run, require_same_run

PROJECT = Path(__file__).resolve().parent.parent
DEFAULT_HOURS = 1.0


@dataclass(frozen=True)
class Flag:
    """A command-line flag and the setting that it writes."""

    name: str
    key: str
    type: Callable[[str], Any]
    help: str


def count(text: str) -> int:
    """A whole number, also written as 1e6 or 1_000_000."""
    number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


FLAGS = (
    Flag("--duration", "training.duration_hours", float, "hours of wall clock to train for"),
    Flag(
        "--total-timesteps",
        "training.total_timesteps",
        count,
        "environment steps to train for, over all environments",
    ),
    Flag("--env", "env.id", str, "a Procgen game (coinrun, procgen-coinrun-v0), a Gymnasium id, or gym:<id>"),
    Flag("--num-envs", "env.num_envs", count, "environments in all"),
    Flag(
        "--num-threads",
        "hardware.num_threads",
        count,
        "threads of one process (default: OMP_NUM_THREADS, or the cores)",
    ),
    Flag("--n-steps", "training.n_steps", count, "steps of each environment in a rollout"),
    Flag("--batch-size", "training.batch_size", count, "samples in a minibatch"),
    Flag("--n-epochs", "training.n_epochs", count, "passes over each rollout"),
    Flag("--learning-rate", "training.learning_rate", float, "learning rate at the start"),
    Flag("--gamma", "training.gamma", float, "discount factor"),
    Flag("--seed", "training.seed", count, "seed of environments, weights, actions and minibatches"),
    Flag(
        "--distribution-mode",
        "env.distribution_mode",
        str,
        "Procgen: easy, hard, extreme, memory or exploration",
    ),
    Flag("--num-levels", "env.num_levels", count, "Procgen: levels to train on, 0 for all"),
    Flag("--start-level", "env.start_level", count, "Procgen: the first level"),
    Flag(
        "--checkpoint-dir",
        "logging.checkpoint_dir",
        str,
        "folder for checkpoints (default: <output-dir>/checkpoints)",
    ),
    Flag(
        "--log-dir", "logging.log_dir", str, "folder for metrics and TensorBoard (default: <output-dir>/logs)"
    ),
    Flag("--device", "hardware.device", str, "cpu"),
)


class Parser(argparse.ArgumentParser):
    """Reports a wrong flag in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def default_config_path(algorithm: str, mode: str) -> Path:
    name = "cpu_cluster" if mode == "distributed" else mode
    return PROJECT / "config" / f"{algorithm}_{name}.yaml"


def make_parser(algorithm: str, mode: str, timed: bool) -> Parser:
    limit = (
        f"for a given wall-clock time (--duration, {DEFAULT_HOURS:g} hour)"
        if timed
        else "for a number of timesteps"
    )
    parser = Parser(
        description=f"Train {algorithm.upper()}, {mode}, {limit}. "
        "Settings come from the config file; flags go over them.",
        epilog="With both --duration and --total-timesteps, whichever ends first ends the run. "
        "Ctrl-C stops it safely: --resume --output-dir DIR continues. "
        "Every setting of the config file can be given as --set section.key=value.",
        allow_abbrev=False,
    )
    path = default_config_path(algorithm, mode)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"settings (default: {path.relative_to(PROJECT)})"
    )
    parser.add_argument(
        "--output-dir", type=Path, metavar="DIR", help="folder of the run (default: a new one in runs/)"
    )
    existing = parser.add_mutually_exclusive_group()
    if mode == "distributed":
        text = "continue the run in --output-dir; auto: if there is one, as a restarted job does by itself"
        existing.add_argument("--resume", nargs="?", const="yes", choices=("yes", "auto"), help=text)
    else:
        existing.add_argument("--resume", action="store_true", help="continue the run in --output-dir")
    existing.add_argument("--overwrite", action="store_true", help="replace the run in --output-dir")
    for flag in FLAGS:
        metavar = {float: "X", count: "N"}.get(flag.type, "TEXT")
        parser.add_argument(flag.name, dest=flag.key, type=flag.type, metavar=metavar, help=flag.help)
    workers = parser.add_argument_group("processes")
    each = " of each node" if mode == "distributed" else ""
    for name, text in (
        ("--num-workers", f"processes{each} that step environments and learn"),
        ("--num-actors", f"actors{each}, of IMPALA only"),
    ):
        workers.add_argument(name, type=count, metavar="N", help=text)
    workers.add_argument(
        "--num-envs-per-worker",
        "--num-envs-per-actor",
        type=count,
        metavar="N",
        help="environments of each process",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, for example training.clip_range=0.1",
    )
    return parser


def apply_flags(data: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Write the flags that were given over the settings of the file, `--set` last."""
    given = vars(arguments)
    for flag in FLAGS:
        if given[flag.key] is not None:
            set_value(data, flag.key, given[flag.key], flag.name)
    for item in arguments.set:
        key, separator, text = item.partition("=")
        if not separator:
            raise UsageError(f"--set {item}: expected section.key=value")
        set_value(data, key.strip(), parse_yaml(text, f"--set {key}"), f"--set {item}")


def apply_workers(data: dict[str, Any], arguments: argparse.Namespace, mode: str) -> None:
    """Write the flags that say how many processes there are and how many environments each of them has."""
    if data["algorithm"] == "impala" and mode != "sequential":
        apply_actors(data, arguments)
        return
    if arguments.num_actors is not None:
        raise UsageError(f"--num-actors {arguments.num_actors}: only IMPALA has actors; use --num-workers")
    workers = arguments.num_workers
    if mode == "sequential" and workers not in (None, 1):
        raise UsageError(f"--num-workers {workers}: this script trains in one process")
    if workers is not None:
        set_value(data, "parallel.num_workers", workers, "--num-workers")
    per_process = arguments.num_envs_per_worker
    if per_process is None:
        return
    parallel = data.get("parallel") or {}
    count = 1 if mode == "sequential" else parallel.get("num_workers") or cpu_utils.usable_cores()
    total = vars(arguments)["env.num_envs"]
    if total not in (None, per_process * count):
        raise UsageError(
            f"--num-envs-per-worker {per_process} x {count} workers contradicts --num-envs {total}"
        )
    set_value(data, "env.num_envs", per_process * count, "--num-envs-per-worker")


def apply_actors(data: dict[str, Any], arguments: argparse.Namespace, num_nodes: int = 1) -> None:
    """The same for IMPALA, whose actors are counted for each node."""
    if arguments.num_workers is not None:
        raise UsageError(
            f"--num-workers {arguments.num_workers}: IMPALA has actors and learners; use --num-actors and "
            "--set impala.num_learners=N"
        )
    if arguments.num_actors is not None:
        set_value(data, "impala.num_actors", arguments.num_actors, "--num-actors")
    per_process = arguments.num_envs_per_worker
    if per_process is None:
        return
    actors = (data.get("impala") or {}).get("num_actors") or cpu_utils.usable_cores()
    set_value(data, "impala.num_actors", actors, "--num-envs-per-actor")
    total, given = per_process * actors * num_nodes, vars(arguments)["env.num_envs"]
    if given not in (None, total):
        nodes = "" if num_nodes == 1 else f" x {num_nodes} nodes"
        raise UsageError(
            f"--num-envs-per-actor {per_process} x {actors} actors{nodes} contradicts --num-envs {given}"
        )
    set_value(data, "env.num_envs", total, "--num-envs-per-actor")


def apply_budget(data: dict[str, Any], arguments: argparse.Namespace, timed: bool) -> None:
    """Keep the limits that this kind of script has: its own, and the other where a flag asks for it."""
    training = data.setdefault("training", {}) or {}
    data["training"] = training
    given = vars(arguments)
    if timed:
        if training.get("duration_hours") is None:
            training["duration_hours"] = DEFAULT_HOURS
        if given["training.total_timesteps"] is None:
            training["total_timesteps"] = None
    elif given["training.duration_hours"] is None:
        training["duration_hours"] = None
        if training.get("total_timesteps", 1) is None:
            raise UsageError(
                "training.total_timesteps is null: give --total-timesteps, or use the timed script"
            )


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
        from src.workers import train_in_workers as train
    else:
        from src.run import train_in_one_process as train

    return train(config, folder, num_threads, arguments.resume, arguments.overwrite)
