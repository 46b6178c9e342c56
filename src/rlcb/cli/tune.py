"""Command `rlcb tune` (tune.py): search hyperparameters of several algorithms with equal effort."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from rlcb.cli.benchmark import machine_lock
from rlcb.cli.command import Parser, count, exit_code, hours
from rlcb.config.algorithms import ALGORITHMS, ONE_MACHINE
from rlcb.config.sourced import SourcedSettings
from rlcb.config.yaml_file import found_config, parse_assignments, parse_settings
from rlcb.errors import EXIT_FAILED, Interrupted, RunError
from rlcb.processes.machine_lock import Lock
from rlcb.processes.signals import StopSignal
from rlcb.tuning.console import TuningProgress, print_plan, print_results
from rlcb.tuning.folder import TuningFolder, open_tuning
from rlcb.tuning.results import best_of, write_results
from rlcb.tuning.search import TrialResult, import_optuna
from rlcb.tuning.settings import Tuning
from rlcb.tuning.space import Dimension, search_space
from rlcb.tuning.tuner import Tuner

logger = logging.getLogger(__name__)

DESCRIPTION = """
Search hyperparameters with equal effort for each algorithm: the same number of
trials, the same budget for each run, the same sampler, seeds and pruner. The
objective is the training return at the end of the budget, so with --duration
it is the return per wall clock of this machine. The first trial has the
default settings. Needs Optuna: pip install "rl-cluster-benchmark[tune]".
"""

EXAMPLES = """
examples:
  Four algorithms, 20 trials each, six minutes for each run; at most 8:10:40:
    tune.py --algorithms ppo a2c a3c impala --envs starpilot --trials 20 \\
        --duration 6m --output-dir tuning/starpilot

  The plan, its cost and the search spaces, without running anything:
    tune.py --algorithms ppo impala --trials 20 --duration 6m --dry-run

  Ctrl-C saves the current run. Continue, also after a kill or a power cut:
    tune.py --output-dir tuning/starpilot

  More trials for every algorithm of a tuning:
    tune.py --output-dir tuning/starpilot --trials 40

  Two games and two seeds (four runs in each trial), the Nature CNN; a fixed
  setting is not searched:
    tune.py --algorithms ppo impala --envs starpilot coinrun --seeds 1 2 \\
        --set model.architecture=nature --set training.gamma=0.999

  Train with the settings found; compare them with others on new seeds:
    train.py --algorithm ppo --mode parallel --env starpilot \\
        --config config/ppo_parallel.yaml --config tuning/starpilot/ppo.yaml
    run_benchmark.py --algorithms ppo impala --modes parallel \\
        --envs starpilot --seeds 11 12 13 --config ppo=tuning/starpilot/ppo.yaml \\
        --config impala=tuning/starpilot/impala.yaml

The folder holds: ALGORITHM.yaml, the best settings as an overlay; trials.csv
and tuning.json, all trials; ALGORITHM/trial_NNN/, the runs; optuna.db, which
Optuna's own tools read. An existing tuning keeps its settings: flags may be
left out, and flags that are given must have the same values; only --trials may
rise. docs/tuning.md explains the protocol and what a search costs.
Exit code: 0 every algorithm has settings, 1 an algorithm has no complete
trial, 2 wrong input, 130 or 143 interrupted (SIGINT or SIGTERM).
"""


def make_parser() -> Parser:
    """Return the parser of all flags."""
    parser = Parser(
        description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_effort_flags(parser.add_argument_group("the effort, equal for all algorithms"))
    _add_run_flags(parser.add_argument_group("the runs"))
    group = parser.add_argument_group("this start")
    group.add_argument("--output-dir", type=Path, metavar="DIR", help="folder (default: new in tuning/)")
    group.add_argument("--dry-run", action="store_true", help="print the plan and its cost; run nothing")
    return parser


def _add_effort_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--algorithms",
        nargs="+",
        type=str.lower,
        choices=ALGORITHMS,
        metavar="NAME",
        help="ppo impala a2c a3c",
    )
    add("--trials", type=count, metavar="N", help="trials for each algorithm (default: 20)")
    budget = group.add_mutually_exclusive_group()
    budget.add_argument(
        "--duration", type=hours, metavar="TIME", help="of each run: 6m, 1h30m, or hours (default: 1h)"
    )
    budget.add_argument(
        "--total-timesteps",
        type=count,
        metavar="N",
        help="of each run, instead of a duration (1M, 250k): ignores how fast the settings train",
    )
    add("--envs", nargs="+", metavar="ID", help="environments of each trial (default: coinrun)")
    add("--seeds", nargs="+", type=count, metavar="N", help="training seeds of each trial (default: 1)")
    add("--sampler", choices=("tpe", "random"), help="how settings are chosen (default: tpe)")
    add(
        "--pruner",
        choices=("median", "halving", "none"),
        help="how poor trials end early (default: median): below the median, by successive halving, never",
    )
    add("--search-seed", type=count, metavar="N", help="seed of the sampler (default: 0)")


def _add_run_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--mode", type=str.lower, choices=ONE_MACHINE, help="sequential or parallel (default)")
    add("--num-envs", type=count, metavar="N", help="total number of environments of each run")
    add(
        "--config",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="configuration file or overlay of an algorithm (ppo=FILE), which its first trial uses; "
        "default: config/<algorithm>_<mode>.yaml",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="fix a setting in all runs, or in those of an algorithm: ppo:KEY=VALUE",
    )


def given_settings(arguments: argparse.Namespace) -> SourcedSettings:
    """Return the settings of the tuning that flags give."""
    flags = {key: value for key, value in vars(arguments).items() if key in Tuning.model_fields}
    flags["config"] = {
        name: str(found_config(Path(path)).resolve())
        for name, path in parse_assignments(arguments.config, "--config").items()
    }
    flags["set"] = parse_settings(arguments.set)
    return SourcedSettings.of_flags({k: value for k, value in flags.items() if value not in (None, {})})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return exit_code(lambda: run_tuning(make_parser().parse_args(argv)))


def run_tuning(arguments: argparse.Namespace) -> int:
    """Plan, start or continue a tuning; return the exit code. Raises UsageError or RunError."""
    root = arguments.output_dir or Path("tuning") / f"tuning_{time.strftime('%Y%m%d-%H%M%S')}"
    folder = open_tuning(root, given_settings(arguments))
    tuning = folder.tuning
    spaces: dict[str, Sequence[Dimension]] = {
        name: search_space(folder.base_config(name), tuple(tuning.fixed(name))) for name in tuning.algorithms
    }
    print_plan(folder, spaces)
    if arguments.dry_run:
        return 0
    import_optuna()
    with StopSignal(forwards=True) as stop:
        locks, progress = [machine_lock(), folder_lock(root)], TuningProgress()
        try:
            locks[0].acquire(root)
            folder.write()
            acquire_if_possible(locks[1], root)
            tuner = Tuner(folder, stop, progress, locks, lambda: write_results(folder, tuner.results()))
            tuner.run_all()
        except Interrupted as interruption:
            progress.close()
            write_results(folder, tuner.results())
            print("\nInterrupted: the current run is saved. To continue:")
            print(f"    python tune.py --output-dir {root}", flush=True)
            return interruption.exit_code
        finally:
            progress.close()
            for lock in reversed(locks):
                lock.release()
    write_results(folder, tuner.results())
    return conclude(folder, tuner.results())


def folder_lock(root: Path) -> Lock:
    """Return the lock that keeps other machines, which may share the file system, out of a tuning."""
    return Lock(root / "tuning.lock", f"another process runs the tuning in {root}", "tuning")


def acquire_if_possible(lock: Lock, root: Path) -> None:
    """Take the lock of the folder, except on a file system without locks. Raises UsageError if another
    process holds it."""
    try:
        lock.acquire(root)
    except RunError as error:
        logger.warning("%s: start only one tuning there", error)


def conclude(folder: TuningFolder, results: Sequence[TrialResult]) -> int:
    """Print the results and how to use them; return the exit code."""
    print_results(folder, results)
    found = [name for name in folder.tuning.algorithms if best_of(results, name) is not None]
    for name in found:
        print(f"{ALGORITHMS[name].label:<7}{folder.overlay(name)}")
    print(f"{'trials':<7}{folder.root / 'trials.csv'}, {folder.root / 'tuning.json'}", flush=True)
    return 0 if len(found) == len(folder.tuning.algorithms) else EXIT_FAILED
