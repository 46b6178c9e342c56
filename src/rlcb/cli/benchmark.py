"""Command `rlcb benchmark` (run_benchmark.py): plan, run, evaluate and compare a study."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from rlcb.cli.command import Parser, count, exit_code, hours, seconds
from rlcb.cli.flags import add_matrix_choice
from rlcb.config.algorithms import MODES
from rlcb.config.sourced import SourcedSettings
from rlcb.config.yaml_file import found_config, parse_assignments, parse_settings
from rlcb.cpu import usable_cores
from rlcb.errors import EXIT_FAILED, Interrupted, UsageError
from rlcb.processes.machine_lock import Lock, machine_lock_path
from rlcb.processes.signals import StopSignal
from rlcb.study.console import PICTURE, Outcome, StudyProgress, print_answer, print_outcomes, print_study_plan
from rlcb.study.folder import StudyFolder, open_study, read_study_file
from rlcb.study.plan import plan_study
from rlcb.study.rounds import check_time, run_rounds
from rlcb.study.runner import Runner, acquire_in_turn
from rlcb.study.state import RunState, TimeEstimate
from rlcb.study.study import PlannedRun, Study
from rlcb.training.run_folder import STUDY_FILE
from rlcb.training.tracking import require_tracker, track_comparison

DESCRIPTION = """
Run algorithms x modes x environments x seeds one after another, each with the
same budget; evaluate every final checkpoint on training and unseen levels;
compare the runs.
"""

EXAMPLES = """
examples:
  Two algorithms in both modes, one game, three seeds, half an hour each:
    run_benchmark.py --algorithms ppo impala --modes sequential parallel \\
        --envs coinrun --seeds 42 43 44 --duration 30m \\
        --output-dir benchmarks/my_study

  A first study, about ten minutes on two cores; a study planned for 8 hours:
    run_benchmark.py --hours
    run_benchmark.py --hours 8h

  Add seeds until it is settled which is best, for at most 4 hours:
    run_benchmark.py --algorithms ppo impala --modes parallel --envs starpilot \\
        --duration 3m --until-decided --max-hours 4h

  Ctrl-C saves the current run. Resume the study:
    run_benchmark.py --output-dir benchmarks/my_study

  Print the plan and the state of each run, without running anything:
    run_benchmark.py --output-dir benchmarks/my_study --dry-run

  Retry the failed runs; add two seeds:
    run_benchmark.py --output-dir benchmarks/my_study --retry-failed
    run_benchmark.py --output-dir benchmarks/my_study \\
        --seeds 42 43 44 45 46 --extend

  Strong scaling over 1, 2 and 4 machines of a SLURM cluster:
    run_benchmark.py --algorithms ppo --modes distributed --nodes 1 2 4 \\
        --envs starpilot --seeds 1 2 3 --duration 0.5 --launcher slurm \\
        --output-dir benchmarks/scaling

  A smaller network in all runs; more epochs for PPO; your own file:
    ... --set model.architecture=nature --set ppo:training.n_epochs=6
    ... --config ppo_parallel=my.yaml

  A study from a file, each run as a task of a SLURM job array:
    run_benchmark.py --study config/studies/example.yaml \\
        --output-dir benchmarks/my_study --launcher slurm \\
        --slurm-option partition=cpu --slurm-option constraint=epyc

An existing study keeps its settings: flags may be left out, and flags that are
given must have the same values, except --cooldown and --evaluate-episodes.
Only one study runs on a machine at a time.
Exit code: 0 all runs completed, 1 some failed, 2 wrong input, 130 or 143
interrupted (SIGINT or SIGTERM).
"""


def make_parser() -> Parser:
    parser = Parser(
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    study = parser.add_argument_group("the study")
    _add_matrix_flags(study)
    _add_budget_flags(study)
    _add_run_flags(parser.add_argument_group("the runs"))
    _add_action_flags(parser.add_argument_group("this start"))
    return parser


def _add_matrix_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--output-dir", type=Path, metavar="DIR", help="folder of the study (default: new in benchmarks/)")
    add("--study", type=Path, metavar="FILE", help="YAML file with the settings; flags override it")
    modes = "sequential and parallel; A3C has only a parallel mode"
    add_matrix_choice(group, "required for a new study", modes, among=MODES)
    add("--nodes", nargs="+", type=count, metavar="N", help="numbers of machines of the distributed runs")
    add(
        "--scaling",
        choices=("strong", "weak"),
        help="strong (default): as many environments and samples in a minibatch on any number of machines; "
        "weak: both multiplied by the number",
    )
    add("--envs", nargs="+", metavar="ID", help="Procgen games or Gymnasium ids (default: coinrun)")
    add("--seeds", nargs="+", type=count, metavar="N", help="training seeds (default: 42)")


def _add_budget_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    budget = group.add_mutually_exclusive_group()
    budget.add_argument(
        "--duration", type=hours, metavar="TIME", help="of each run: 10m, 1h30m, or hours (default: 1h)"
    )
    budget.add_argument(
        "--total-timesteps", type=count, metavar="N", help="of each run, instead of a duration: 1M, 250k"
    )
    add(
        "--hours",
        nargs="?",
        type=hours,
        const=True,
        metavar="TIME",
        help="plan a study that takes this time on this machine (8h, 45m, or a number of hours): its games, "
        "groups, seeds and duration, unless given; without TIME a first study of ten minutes on two cores",
    )
    add(
        "--until-decided",
        action="store_const",
        const=True,
        help="add seeds in rounds until a sequential test has settled which group has the highest return on "
        "unseen levels",
    )
    add("--max-hours", type=hours, metavar="TIME", help="with --until-decided: time of all starts together")
    add(
        "--order",
        choices=("by-seed", "by-config"),
        help="by-seed (default): every configuration with one seed, then with the next, so that a machine "
        "that slows down affects all equally; by-config: all seeds of a configuration in a row",
    )
    add(
        "--evaluate-episodes",
        type=count,
        metavar="N",
        help="evaluation episodes on each split after each run (default: 100), 0 for none",
    )
    add(
        "--cooldown",
        type=seconds,
        metavar="TIME",
        help="wait between two runs: 90s, 2m, or seconds (default: 0)",
    )
    add("--track", metavar="NAME", help="log all runs to an experiment tracker as well: wandb or trackio")


def _add_run_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--num-envs", type=count, metavar="N", help="total number of environments of each run")
    add(
        "--num-workers",
        type=count,
        metavar="N",
        help="processes of each parallel run, and of each node of a distributed run: workers (default: one "
        "per core), or actors for IMPALA (default: measured)",
    )
    add(
        "--config",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="configuration file or overlay of an algorithm (ppo=FILE) or of an algorithm and mode "
        "(ppo_parallel=FILE); default: config/<algorithm>_<mode>.yaml",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting, for all runs or for some: ppo:KEY=VALUE, parallel:..., ppo_parallel:...",
    )


def _add_action_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--dry-run", action="store_true", help="print the plan and the state of each run; run nothing")
    add("--retry-failed", action="store_true", help="retry failed runs from their last checkpoint")
    add("--extend", action="store_true", help="add runs to an existing study")
    add("--compare-only", action="store_true", help="run nothing, compare the completed runs")
    add("--cell", type=count, metavar="K", help="run only run K of an existing study")
    add(
        "--launcher",
        choices=("local", "slurm"),
        default="local",
        help="local (default): on this machine; slurm: as a job array",
    )
    add(
        "--slurm-option",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="an option of sbatch without its dashes, such as partition=cpu; may be given several times",
    )


def given_settings(arguments: argparse.Namespace) -> SourcedSettings:
    """Return the settings of a study that are given by --study and by flags; flags override the file."""
    given = SourcedSettings() if arguments.study is None else read_study_file(arguments.study)
    flags = {key: value for key, value in vars(arguments).items() if key in Study.model_fields}
    flags["config"] = {
        name: str(found_config(Path(path)).resolve())
        for name, path in parse_assignments(arguments.config, "--config").items()
    }
    flags["set"] = parse_settings(arguments.set)
    flags = {key: value for key, value in flags.items() if value not in (None, {})}
    for budget, other in (("duration", "total_timesteps"), ("total_timesteps", "duration")):
        if budget in flags:
            given.pop(other, None)
    sources = {**given.sources, **SourcedSettings.of_flags(flags).sources}
    for key in ("config", "set"):
        if key in given and key in flags and isinstance(given[key], dict):
            flags[key] = {**given[key], **flags[key]}
    return SourcedSettings({**given, **flags}, sources)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return exit_code(lambda: run_study(make_parser().parse_args(argv)))


def run_study(arguments: argparse.Namespace) -> int:
    """Open the study and plan, run, submit or compare it; return the exit code.

    Raises UsageError or RunError.
    """
    root = arguments.output_dir or Path("benchmarks") / f"study_{time.strftime('%Y%m%d-%H%M%S')}"
    folder = open_study(root, chosen_settings(root, arguments), arguments.extend)
    states = folder.states()
    require_tracker(folder.study.track)
    if arguments.cell is not None:
        return run_one(folder, arguments)
    if arguments.compare_only:
        return compare_study(folder, states)
    if arguments.launcher == "slurm":
        return launch(folder, states, arguments)
    if folder.study.until_decided and not folder.exists:
        check_time(folder.study, TimeEstimate(folder.study, states))
    print_study_plan(folder, states, arguments.retry_failed)
    if arguments.dry_run:
        return 0
    refuse_several_nodes(folder.study)
    with StopSignal(forwards=True) as stop:
        lock = machine_lock()
        lock.acquire(root)
        progress = StudyProgress()
        try:
            folder.write()
            runner = Runner(folder, stop, progress, lock, arguments.retry_failed)
            outcomes = run_rounds(runner) if folder.study.until_decided else runner.run_all(folder.study.runs)
        except Interrupted as interruption:
            progress.close()
            done = sum(state.done for state in runner.states.values())
            print(f"\nInterrupted: {done} of {len(runner.states)} runs are done. To resume:")
            print(f"    python run_benchmark.py --output-dir {root}", flush=True)
            return interruption.exit_code
        finally:
            progress.close()
            lock.release()
    return conclude(runner.folder, outcomes)


def refuse_several_nodes(study: Study) -> None:
    """Raise UsageError if a run needs more machines than this one."""
    most = max(study.nodes or [1])
    if most > 1:
        raise UsageError(f"--nodes {most}: this machine is one node; use --launcher slurm")


def chosen_settings(root: Path, arguments: argparse.Namespace) -> SourcedSettings:
    """Return the given settings of a study, with --hours those of its plan. Raises UsageError."""
    given = given_settings(arguments)
    if arguments.hours is None:
        return given
    if (root / STUDY_FILE).exists():
        raise UsageError(f"{root} holds a study already; leave out --hours to resume it")
    plan = plan_study(None if arguments.hours is True else arguments.hours, usable_cores(), given)
    planned = SourcedSettings.of(plan.settings, "--hours")
    return SourcedSettings(plan.settings, {**planned.sources, **given.sources})


def machine_lock() -> Lock:
    """Return the lock that allows one study or measurement at a time on this machine."""
    why = "a study and other measurements at once would slow each other down"
    return Lock(machine_lock_path(), why, for_all_users=True)


def conclude(folder: StudyFolder, outcomes: Sequence[Outcome]) -> int:
    """Compare the runs, print the outcomes and at last the answer; return the exit code."""
    try:
        compared = compare_study(folder, folder.states())
    finally:
        print_outcomes(folder, outcomes)
    if not compared:
        print_answer(folder)
    return EXIT_FAILED if compared or any(outcome.status == "failed" for outcome in outcomes) else 0


def compare_study(folder: StudyFolder, states: dict[str, RunState]) -> int:
    """Compare the completed runs; return the exit code of the comparison, 1 if no run is completed."""
    if not any(state.status == "completed" for state in states.values()):
        print("Nothing to compare: no run is completed", flush=True)
        return EXIT_FAILED
    from rlcb.cli.compare import main as compare_runs  # importing Matplotlib takes a second

    print(flush=True)
    code: int = compare_runs(["--runs", str(folder.root), "--output", str(folder.root / PICTURE)])
    if code == 0 and folder.study.track is not None:
        completed = sum(state.status == "completed" for state in states.values())
        facts = {"comparison/runs": completed}
        track_comparison(folder.root, folder.study.track, folder.root / PICTURE, facts)
    return code


def run_one(folder: StudyFolder, arguments: argparse.Namespace) -> int:
    """Train and evaluate one run, as a task of a job array does; return the exit code."""
    runs = folder.study.runs
    if not folder.exists:
        raise UsageError(f"--cell {arguments.cell}: {folder.root} holds no study")
    if not 1 <= arguments.cell <= len(runs):
        raise UsageError(f"--cell {arguments.cell}: the study has runs 1 to {len(runs)}")
    run: PlannedRun = runs[arguments.cell - 1]
    progress, lock = StudyProgress(), machine_lock()
    with StopSignal(forwards=True) as stop:
        try:
            acquire_in_turn(lock, folder.root, stop, progress)
            (outcome,) = Runner(folder, stop, progress, lock, arguments.retry_failed).run_all([run])
        except Interrupted as interruption:
            return interruption.exit_code
        finally:
            progress.close()
            lock.release()
    print(f"run {run.number}, {run.title}: {outcome.status} {outcome.reason}".rstrip(), flush=True)
    return EXIT_FAILED if outcome.status == "failed" else 0


def launch(folder: StudyFolder, states: dict[str, RunState], arguments: argparse.Namespace) -> int:
    """Submit the remaining runs as a job array, or print the commands (--dry-run); return the exit code."""
    from rlcb.study import slurm

    todo = [
        run
        for run in folder.study.runs
        if not states[run.name].done and (arguments.retry_failed or states[run.name].status != "failed")
    ]
    options = (arguments.slurm_option, arguments.retry_failed)
    if folder.study.until_decided:
        raise UsageError("--launcher slurm: --until-decided adds runs after the results of others; use local")
    if not arguments.dry_run:
        slurm.require_sbatch()
    print_study_plan(folder, states, arguments.retry_failed)
    if not todo:
        return 0 if all(state.done for state in states.values()) else EXIT_FAILED
    if arguments.dry_run:
        commands = [slurm.array_command(folder, runs, states, *options) for runs in slurm.arrays(todo)]
        jobs = ["JOB"] if len(commands) == 1 else [f"JOB{n}" for n, _ in enumerate(commands, 1)]
        slurm.print_commands([*commands, slurm.compare_command(folder, jobs, arguments.slurm_option)])
        return 0
    folder.write()
    return slurm.submit_study(folder, todo, states, *options)
