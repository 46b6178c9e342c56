"""The flags of the training commands, and how they change the settings of a configuration file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rlcb import cpu
from rlcb.cli.command import Parser, count, hours
from rlcb.config.algorithms import ALGORITHMS, MODES, ONE_MACHINE
from rlcb.config.budget import DEFAULT_HOURS
from rlcb.config.config import as_count, flat_settings
from rlcb.config.settings import EnvConfig
from rlcb.config.sourced import SourcedSettings
from rlcb.config.yaml_file import (
    build_config,
    parse_yaml,
    read_config_file,
    read_config_files,
    require_run,
    set_value,
)
from rlcb.errors import UsageError
from rlcb.paths import default_config_path, shown_path

LIMITS = {"--duration": "a wall-clock time", "--total-timesteps": "a number of timesteps"}


@dataclass(frozen=True)
class Flag:
    """A command-line flag and the setting that it sets."""

    name: str
    key: str
    type: Callable[[str], Any]
    help: str


FLAGS = (
    Flag(
        "--duration",
        "training.duration_hours",
        hours,
        "wall clock to train for: 30m, 1h30m, 90s, or a number of hours",
    ),
    Flag(
        "--total-timesteps",
        "training.total_timesteps",
        count,
        "steps of all environments to train for: 1M, 250k, 1e6",
    ),
    Flag("--env", "env.id", str, "a Procgen game (coinrun), a Gymnasium id, or gym:<id>"),
    Flag("--num-envs", "env.num_envs", count, "environments in total"),
    Flag(
        "--num-threads",
        "hardware.num_threads",
        count,
        "threads per process (default: OMP_NUM_THREADS, else all cores, or 1 with several processes)",
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
    Flag("--track", "logging.track", str, "log to an experiment tracker as well: wandb or trackio"),
    Flag("--device", "hardware.device", str, "only cpu is supported"),
)


ACCEPT_ACTORS = Flag(
    "--accept-actors",
    "impala.actor_port",
    count,
    "accept actors of other machines (rlcb join) at this port; 0: any free port",
)


def add_matrix_choice(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    algorithms: str,
    modes: str,
    among: Sequence[str] = ONE_MACHINE,
) -> None:
    """Add `--algorithms` and `--modes`, which take several names; the texts say what is the default.

    `among` are the modes that may be chosen.
    """
    for flag, names, default in (
        ("--algorithms", tuple(ALGORITHMS), algorithms),
        ("--modes", tuple(among), modes),
    ):
        text = f"{' '.join(names)} (default: {default})"
        parser.add_argument(flag, nargs="+", type=str.lower, choices=names, metavar="NAME", help=text)


def make_parser(algorithm: str, mode: str, timed: bool | None) -> Parser:
    """Return the parser of a training command for one algorithm and mode. Its result names all three.

    `timed` is True for a script that is limited by `--duration`, False for one that is limited by
    `--total-timesteps`, and None for `rlcb train`, which takes either and chooses the algorithm by flags.
    """
    path = default_config_path(algorithm, mode)
    limit = "--duration" if timed else "--total-timesteps"
    other = {True: "--total-timesteps", False: "--duration", None: None}[timed]
    description = (
        f"Train {algorithm.upper()}, {mode}, for {LIMITS[limit]} ({limit}). "
        if other
        else f"Train {algorithm.upper()}, {mode}, until --duration or --total-timesteps is reached. "
    )
    if timed is None:
        description += "The flags below are those of this algorithm and mode. "
    both = f"Give {other} as well" if other else "Give both limits"
    parser = Parser(
        description=f"{description}Settings come from the configuration file; flags override them. "
        f"Numbers in brackets: the values in {shown_path(path)}.",
        epilog=f"{both} and the run ends at whichever comes first. Ctrl-C stops it safely: "
        "--resume --output-dir DIR continues.",
    )
    parser.set_defaults(algorithm=algorithm, mode=mode, timed=timed)
    if timed is None:
        add_choice(parser)
    add_run_flags(parser, path, resumes_itself=mode == "distributed")
    shown = shown_settings(path, timed)
    settings = parser.add_argument_group("settings")
    for flag in FLAGS:
        metavar = {float: "X", count: "N", hours: "TIME"}.get(flag.type, "TEXT")
        text = flag.help if flag.name == other else flag.help + bracketed(shown.get(flag.key))
        settings.add_argument(flag.name, dest=flag.key, type=flag.type, metavar=metavar, help=text)
    settings.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting of the file, for example training.clip_range=0.1; may be given several times",
    )
    add_process_flags(parser, algorithm, mode, shown.get("parallel.num_workers"))
    return parser


def add_choice(parser: Parser) -> None:
    """Add the flags of `rlcb train` that choose the algorithm and the mode."""
    parser.add_argument(
        "--algorithm", choices=tuple(ALGORITHMS), default="ppo", help="what learns (default: ppo)"
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="parallel",
        help="one process, several processes of one machine, or several nodes (default: parallel)",
    )


def shown_settings(path: Path, timed: bool | None) -> dict[str, Any]:
    """Return the settings that `--help` shows, by dotted key; {} if the configuration file is not valid."""
    try:
        settings = flat_settings(build_config(read_config_file(path)))
    except UsageError:
        return {}
    if timed:
        settings["training.duration_hours"] = settings["training.duration_hours"] or DEFAULT_HOURS
    return settings


def bracketed(value: Any) -> str:
    """Return a default value as help texts show it; "" for None."""
    return "" if value is None else f" ({value:g})" if isinstance(value, float) else f" ({value})"


def add_run_flags(parser: Parser, path: Path, resumes_itself: bool) -> None:
    """Add the flags for the configuration file and the folder of the run.

    `resumes_itself` adds `--resume auto`, for jobs that a scheduler restarts.
    """
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        metavar="FILE",
        help=f"settings (default: {shown_path(path)}); may be given several times, later files override "
        "earlier ones",
    )
    parser.add_argument(
        "--output-dir", type=Path, metavar="DIR", help="folder of the run (default: a new one in runs/)"
    )
    existing = parser.add_mutually_exclusive_group()
    if resumes_itself:
        text = "continue the run in --output-dir; auto: only if there is one, for jobs that restart"
        existing.add_argument("--resume", nargs="?", const="yes", choices=("yes", "auto"), help=text)
    else:
        existing.add_argument("--resume", action="store_true", help="continue the run in --output-dir")
    existing.add_argument("--overwrite", action="store_true", help="replace the run in --output-dir")
    parser.add_argument("--trace-folder", type=Path, help=argparse.SUPPRESS)  # for profile_cpu.py --trace


def add_process_flags(parser: Parser, algorithm: str, mode: str, num_workers: int | None) -> None:
    """Add the flags for the number of processes.

    Flags that the algorithm or mode does not have are hidden and refused later with a reason.
    """
    each = " per node" if mode == "distributed" else ""
    has_actors = ALGORITHMS[algorithm].has_actors and mode != "sequential"
    default = " (default: one per core)" if mode == "distributed" else bracketed(num_workers)
    workers = f"processes{each} that step environments and learn{default}"
    actors = f"processes{each} that step environments (default: measured at the start)"
    group = parser.add_argument_group("processes") if mode != "sequential" else parser
    for name, text, is_shown in (
        ("--num-workers", workers, mode != "sequential" and not has_actors),
        ("--num-actors", actors, has_actors),
    ):
        group.add_argument(name, type=count, metavar="N", help=text if is_shown else argparse.SUPPRESS)
    names = ["--num-envs-per-worker", "--num-envs-per-actor"]
    if has_actors:
        names.reverse()
    shown = ACCEPT_ACTORS.help if has_actors else argparse.SUPPRESS
    group.add_argument(
        ACCEPT_ACTORS.name, dest=ACCEPT_ACTORS.key, type=ACCEPT_ACTORS.type, metavar="PORT", help=shown
    )
    each = "environments per worker, instead of --num-envs"
    if has_actors:
        each = "environments per actor; without --num-actors, the number of actors follows from --num-envs"
    text = argparse.SUPPRESS if mode == "sequential" else each
    group.add_argument(*names, dest="num_envs_per_worker", type=count, metavar="N", help=text)


def read_settings(arguments: argparse.Namespace) -> SourcedSettings:
    """Return the merged files of `--config`, or the default file.

    Raises UsageError if they are files of another algorithm or mode.
    """
    algorithm, mode = arguments.algorithm, arguments.mode
    paths = arguments.config or [default_config_path(algorithm, mode)]
    data = read_config_files(paths, algorithm, mode)
    require_run(data, algorithm, mode, "this command runs")
    return data


def apply_flags(data: SourcedSettings, arguments: argparse.Namespace) -> None:
    """Override the settings in `data` with the given flags, `--set` last. Raises UsageError."""
    given = vars(arguments)
    for flag in (*FLAGS, ACCEPT_ACTORS):
        if given[flag.key] is not None:
            set_value(data, flag.key, given[flag.key], flag.name)
    for item in arguments.set:
        key, separator, text = item.partition("=")
        if not separator:
            raise UsageError(f"--set {item}: expected section.key=value")
        set_value(data, key.strip(), parse_yaml(text, f"--set {key}"), f"--set {key.strip()}")


def apply_workers(data: SourcedSettings, arguments: argparse.Namespace) -> None:
    """Apply the flags for the number of processes and the environments per process. Raises UsageError."""
    mode = arguments.mode
    if data["algorithm"] == "impala" and mode != "sequential":
        apply_actors(data, arguments)
        return
    if arguments.num_actors is not None:
        refuse_actors(arguments.num_actors, data["algorithm"], mode)
    workers = arguments.num_workers
    if mode == "sequential" and workers not in (None, 1):
        raise UsageError(f"--num-workers {workers}: this script trains in one process")
    if workers is not None:
        set_value(data, "parallel.num_workers", workers, "--num-workers")
    per_process = arguments.num_envs_per_worker
    if per_process is None:
        return
    count = as_count(section(data, "parallel").get("num_workers")) or cpu.usable_cores()
    if mode == "sequential":
        count = 1
    total = vars(arguments)["env.num_envs"]
    if total not in (None, per_process * count):
        where = said_by(data, "parallel.num_workers", "--num-workers")
        raise UsageError(
            f"--num-envs-per-worker {per_process} x {count} workers{where} contradicts --num-envs {total}"
        )
    set_value(data, "env.num_envs", per_process * count, "--num-envs-per-worker")


def said_by(data: SourcedSettings, key: str, flag: str) -> str:
    """Return ` (FILE line N)` if a setting comes from elsewhere than its flag, for a message; else ""."""
    source = data.source(key)
    return "" if source in (None, flag) else f" ({source})"


def section(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a section of plain settings; {} if it is missing or not a section."""
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def refuse_actors(number: int, algorithm: str, mode: str) -> NoReturn:
    """Raise UsageError for --num-actors in a run without actors."""
    if mode != "sequential":
        why = "only IMPALA has actors; use --num-workers"
    elif algorithm == "impala":
        why = "a sequential run has no actors; --mode parallel has (train_impala_parallel.py)"
    else:
        why = "only IMPALA has actors, and this script trains in one process"
    raise UsageError(f"--num-actors {number}: {why}")


def apply_actors(data: SourcedSettings, arguments: argparse.Namespace, num_nodes: int = 1) -> None:
    """Apply the flags for IMPALA's actors, whose number is per node. Raises UsageError.

    If neither the flags nor the file give the number of actors, it follows from --num-envs-per-actor.
    """
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
    actors = section(data, "impala").get("num_actors")
    if actors is None:
        actors = actors_for(data, per_process, num_nodes)
        set_value(data, "impala.num_actors", actors, "--num-envs-per-actor")
    elif as_count(actors) is None:
        return  # validation refuses it
    total, given = per_process * actors * num_nodes, vars(arguments)["env.num_envs"]
    if given not in (None, total):
        nodes = "" if num_nodes == 1 else f" x {num_nodes} nodes"
        where = said_by(data, "impala.num_actors", "--num-actors")
        raise UsageError(
            f"--num-envs-per-actor {per_process} x {actors} actors{where}{nodes} contradicts "
            f"--num-envs {given}"
        )
    set_value(data, "env.num_envs", total, "--num-envs-per-actor")


def actors_for(data: SourcedSettings, per_actor: int, num_nodes: int) -> int:
    """Return the number of actors per node for `per_actor` environments each.

    Raises UsageError if env.num_envs is not a multiple of `per_actor` x `num_nodes`.
    """
    written = section(data, "env").get("num_envs", EnvConfig.model_fields["num_envs"].default)
    total, each = as_count(written), per_actor * num_nodes
    if total is None or each < 1 or total % each:
        nodes = "" if num_nodes == 1 else f" x {num_nodes} nodes"
        raise UsageError(
            f"--num-envs-per-actor {per_actor}{nodes}: env.num_envs = {written}"
            f"{said_by(data, 'env.num_envs', '--num-envs')} is no multiple of it; give another --num-envs, "
            "or --num-actors"
        )
    return total // each


def apply_budget(data: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Keep the limit of the run that the command or its flags ask for, and drop the other one.

    A timed script drops `training.total_timesteps`, and a script for a number of timesteps drops
    `training.duration_hours`, unless a flag gives it. `rlcb train` drops the limit whose flag is missing if
    the other flag is given; without both flags the limits of the file stay.
    """
    training = data.setdefault("training", {}) or {}
    data["training"] = training
    hours = vars(arguments)["training.duration_hours"]
    timesteps = vars(arguments)["training.total_timesteps"]
    timed, unlimited = arguments.timed, training.get("total_timesteps", 1) is None
    if timed is None and hours is None and timesteps is None:
        if unlimited and training.get("duration_hours") is None:
            raise UsageError("training.total_timesteps is null: give --duration or --total-timesteps")
        return
    if timed is None:
        timed = timesteps is None
    if timed:
        if training.get("duration_hours") is None:
            training["duration_hours"] = DEFAULT_HOURS
        if timesteps is None:
            training["total_timesteps"] = None
    elif hours is None:
        training["duration_hours"] = None
        if unlimited:
            raise UsageError(
                "training.total_timesteps is null: give --total-timesteps, or use the timed script"
            )
