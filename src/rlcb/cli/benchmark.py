"""The command line of a study, and its way from the plan to the comparison."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlcb.cli.command import Parser, count, exit_code
from rlcb.config.algorithms import ALGORITHMS, ONE_MACHINE
from rlcb.config.yaml_file import parse_assignments, parse_settings
from rlcb.errors import EXIT_FAILED, Interrupted, UsageError
from rlcb.processes.machine_lock import Lock, machine_lock_path
from rlcb.processes.signals import StopSignal
from rlcb.study.console import Outcome, StudyProgress, print_outcomes, print_plan
from rlcb.study.folder import StudyFolder, open_study, read_study_file
from rlcb.study.runner import Runner, in_turn
from rlcb.study.state import State
from rlcb.study.study import PlannedRun, Study

DESCRIPTION = """
Run algorithms x modes x environments x seeds one after another, each with the
same budget; evaluate every final checkpoint on training and unseen levels;
compare them all.
"""

EXAMPLES = """
examples:
  Two algorithms in both modes, one game, three seeds, half an hour each:
    run_benchmark.py --algorithms ppo impala --modes sequential parallel \\
        --envs coinrun --seeds 42 43 44 --duration 0.5 \\
        --output-dir benchmarks/my_study

  Ctrl-C saves the run that goes on. To go on where the study was:
    run_benchmark.py --output-dir benchmarks/my_study

  The plan, and how the runs of a study stand, without running anything:
    run_benchmark.py --output-dir benchmarks/my_study --dry-run

  The failed runs once more; two seeds more:
    run_benchmark.py --output-dir benchmarks/my_study --retry-failed
    run_benchmark.py --output-dir benchmarks/my_study \\
        --seeds 42 43 44 45 46 --extend

  A smaller network in all runs; more epochs in PPO's; a file of your own:
    ... --set model.architecture=nature --set ppo:training.n_epochs=6
    ... --config ppo_parallel=my.yaml

  From a file, each run as a task of a SLURM job array:
    run_benchmark.py --study config/studies/example.yaml \\
        --output-dir benchmarks/my_study --launcher slurm \\
        --slurm-option partition=cpu --slurm-option constraint=epyc

A study that has begun keeps its settings: what is not given is as it was, and
what is given must be the same, except --cooldown and --evaluate-episodes. Only
one study runs on a machine at a time.
Exit code: 0 all runs completed, 1 some failed, 2 wrong input, 130 or 143
interrupted (SIGINT or SIGTERM).
"""


def make_parser() -> Parser:
    parser = Parser(
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_matrix_flags(parser.add_argument_group("the study"))
    _add_run_flags(parser.add_argument_group("its runs"))
    _add_action_flags(parser.add_argument_group("this start"))
    return parser


def _add_matrix_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--output-dir", type=Path, metavar="DIR", help="folder of the study (default: new in benchmarks/)")
    add("--study", type=Path, metavar="FILE", help="YAML file with the settings; flags go over it")
    add(
        "--algorithms",
        nargs="+",
        type=str.lower,
        choices=ALGORITHMS,
        metavar="NAME",
        help="ppo impala a2c a3c",
    )
    add(
        "--modes",
        nargs="+",
        type=str.lower,
        choices=ONE_MACHINE,
        metavar="NAME",
        help="sequential parallel (default: both; A3C has no sequential one)",
    )
    add("--envs", nargs="+", metavar="ID", help="Procgen games or Gymnasium ids (default: coinrun)")
    add("--seeds", nargs="+", type=count, metavar="N", help="training seeds (default: 42)")
    budget = group.add_mutually_exclusive_group()
    budget.add_argument("--duration", type=float, metavar="HOURS", help="of each run (default: 1.0)")
    budget.add_argument(
        "--total-timesteps", type=count, metavar="N", help="of each run, instead of a duration"
    )
    add(
        "--order",
        choices=("by-seed", "by-config"),
        help="by-seed (default): every configuration once, then the next seed, so that a machine that "
        "slows down favours none; by-config: all seeds of one in a row",
    )
    add(
        "--evaluate-episodes",
        type=count,
        metavar="N",
        help="episodes of each split after each run (default: 100), 0 for none",
    )
    add("--cooldown", type=float, metavar="SECONDS", help="rest between two runs (default: 0)")


def _add_run_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--num-envs", type=count, metavar="N", help="environments of each run, in all")
    add(
        "--num-workers",
        type=count,
        metavar="N",
        help="processes of each parallel run: workers, one per core by default, or actors of IMPALA, which "
        "measures by default how many are best",
    )
    add(
        "--config",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="settings of an algorithm (ppo=FILE) or of one in one mode (ppo_parallel=FILE); "
        "default: config/<algorithm>_<mode>.yaml",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, for all runs, or for some: ppo:KEY=VALUE, parallel:..., ppo_parallel:...",
    )


def _add_action_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--dry-run", action="store_true", help="print the plan and how the runs stand; run nothing")
    add("--retry-failed", action="store_true", help="try failed runs again, from their last checkpoint")
    add("--extend", action="store_true", help="let a study that has begun get more runs")
    add("--compare-only", action="store_true", help="run nothing, compare what is there")
    add("--cell", type=count, metavar="K", help="bring only run K of a begun study to its end")
    add("--launcher", choices=("local", "slurm"), default="local", help="here (default), or as a job array")
    add(
        "--slurm-option",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="an option of sbatch, without its dashes, as in partition=cpu; may be given several times",
    )


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of a study that the file and the flags name."""
    given = read_study_file(arguments.study) if arguments.study is not None else {}
    flags = {key: value for key, value in vars(arguments).items() if key in Study.model_fields}
    flags["config"] = {
        name: str(Path(path).resolve())
        for name, path in parse_assignments(arguments.config, "--config").items()
    }
    flags["set"] = parse_settings(arguments.set)
    flags = {key: value for key, value in flags.items() if value not in (None, {})}
    for budget, other in (("duration", "total_timesteps"), ("total_timesteps", "duration")):
        if budget in flags:
            given.pop(other, None)
    for key in ("config", "set"):
        if key in given and key in flags and isinstance(given[key], dict):
            flags[key] = {**given[key], **flags[key]}
    return {**given, **flags}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; returns its exit code."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def run(arguments: argparse.Namespace) -> int:
    """Do what the flags say. Raises UsageError or RunError."""
    root = arguments.output_dir or Path("benchmarks") / f"study_{time.strftime('%Y%m%d-%H%M%S')}"
    folder = open_study(root, given_settings(arguments), arguments.extend)
    states = folder.states()
    if arguments.cell is not None:
        return run_cell(folder, arguments)
    if arguments.compare_only:
        return compare(folder, states)
    if arguments.launcher == "slurm":
        return launch(folder, states, arguments)
    print_plan(folder, states, arguments.retry_failed)
    if arguments.dry_run:
        return 0
    with StopSignal(forwards=True) as stop:
        lock = machine_lock()
        lock.acquire(root)
        progress = StudyProgress()
        try:
            folder.write()
            runner = Runner(folder, stop, progress, lock, arguments.retry_failed)
            outcomes = runner.run_all(folder.study.cells)
        except Interrupted as interruption:
            progress.close()
            done = sum(state.done for state in runner.states.values())
            print(f"\nInterrupted: {done} of {len(runner.states)} runs are done. To go on:")
            print(f"    python run_benchmark.py --output-dir {root}", flush=True)
            return interruption.exit_code
        finally:
            progress.close()
            lock.release()
    return conclude(folder, outcomes)


def machine_lock() -> Lock:
    why = "a study and other measurements at once would slow each other down"
    return Lock(machine_lock_path(), why, for_all_users=True)


def conclude(folder: StudyFolder, outcomes: Sequence[Outcome]) -> int:
    """Compare the runs, say which failed; returns the exit code."""
    try:
        compared = compare(folder, folder.states())
    finally:
        print_outcomes(folder, outcomes)
    return EXIT_FAILED if compared or any(outcome.status == "failed" for outcome in outcomes) else 0


def compare(folder: StudyFolder, states: dict[str, State]) -> int:
    """Compare the runs that are there; returns the exit code of the comparison, 1 if there is none."""
    if not any(state.status == "completed" for state in states.values()):
        print("Nothing to compare: no run is completed", flush=True)
        return EXIT_FAILED
    from rlcb.cli.compare import main as compare_runs  # draws, so it takes a second to load

    print(flush=True)
    code: int = compare_runs(["--runs", str(folder.root), "--output", str(folder.root / "comparison.png")])
    return code


def run_cell(folder: StudyFolder, arguments: argparse.Namespace) -> int:
    """Bring one run to its end, as a task of a job array does; returns the exit code."""
    cells = folder.study.cells
    if not folder.begun:
        raise UsageError(f"--cell {arguments.cell}: {folder.root} holds no study")
    if not 1 <= arguments.cell <= len(cells):
        raise UsageError(f"--cell {arguments.cell}: the study has runs 1 to {len(cells)}")
    cell: PlannedRun = cells[arguments.cell - 1]
    progress, lock = StudyProgress(), machine_lock()
    with StopSignal(forwards=True) as stop:
        try:
            in_turn(lock, folder.root, stop, progress)
            (outcome,) = Runner(folder, stop, progress, lock, arguments.retry_failed).run_all([cell])
        except Interrupted as interruption:
            return interruption.exit_code
        finally:
            progress.close()
            lock.release()
    print(f"run {cell.number}, {cell.title}: {outcome.status} {outcome.reason}".rstrip(), flush=True)
    return EXIT_FAILED if outcome.status == "failed" else 0


def launch(folder: StudyFolder, states: dict[str, State], arguments: argparse.Namespace) -> int:
    """Submit what is left as a job array, or with --dry-run print the commands; returns the exit code."""
    from rlcb.study import slurm

    todo = [
        cell
        for cell in folder.study.cells
        if not states[cell.name].done and (arguments.retry_failed or states[cell.name].status != "failed")
    ]
    rest = (arguments.slurm_option, arguments.retry_failed)
    if not arguments.dry_run:
        slurm.require_sbatch()
    print_plan(folder, states, arguments.retry_failed)
    if not todo:
        return 0 if all(state.done for state in states.values()) else EXIT_FAILED
    if arguments.dry_run:
        array = slurm.array_command(folder, todo, states, *rest)
        slurm.print_commands([array, slurm.compare_command(folder, "JOB", arguments.slurm_option)])
        return 0
    folder.write()
    return slurm.submit_study(folder, todo, states, *rest)
