"""The command line of profile_cpu.py."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlcb.cli.command import Parser, exit_code
from rlcb.cli.flags import add_matrix_choice
from rlcb.errors import EXIT_FAILED, Interrupted
from rlcb.machine.profile import profiles_folder
from rlcb.processes.signals import StopSignal
from rlcb.profiling.job import ProfileProgress, measure, reuse, save
from rlcb.profiling.measure import EFFORTS
from rlcb.profiling.report import describe_profile
from rlcb.profiling.request import (
    configurations,
    environments,
    files_to_write,
    selected_pairs,
    traced_configuration,
    write_setup,
)

DESCRIPTION = """
Know your machine: measure, in three to four minutes, the speed limit of training
on this machine and the share of it that each algorithm reaches; recommend
workers, actors, threads, environments and microbatch. Do not use the machine
for anything else meanwhile.
"""

EXAMPLES = """
examples:
  Measure everything, for the network and game of the configurations:
    profile_cpu.py

  Measure the Nature CNN on starpilot, and the speed of coinrun:
    profile_cpu.py --network nature --env starpilot coinrun

  Write the recommendation as a configuration and train with it:
    profile_cpu.py --write config/local_ppo_parallel.yaml
    train_parallel_timed.py --config config/local_ppo_parallel.yaml

  Write a recommendation from an earlier profile, without measuring:
    profile_cpu.py --reuse --write config/local_impala_parallel.yaml

  Trace one update and list its operators by time:
    profile_cpu.py --trace ppo_sequential

A profile is a JSON file, a text and a picture (the roofline) in profiles/, named
by machine and network. Training runs look for it there and write the share of
the limit that they reached to benchmark_metrics.json. They ignore a profile of
other hardware, another torch version, network or game.
"""


def add_subject(parser: Parser) -> None:
    """Add the flags that choose network, environments, algorithms and settings."""
    add = parser.add_argument
    add(
        "--network",
        choices=("impala", "nature"),
        help="network to measure (default: as in the configurations)",
    )
    add(
        "--env",
        nargs="+",
        metavar="ID",
        help="environment for limits and recommendations (default: as in the configurations), and further "
        "ones to measure, so that their runs know their limit too; all: every Procgen game",
    )
    add_matrix_choice(parser, "all", "both")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change any setting of the configurations, for example model.hidden_size=512",
    )


def add_efforts(parser: Parser) -> None:
    """Add the flags that say how much to measure."""
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="measure for one minute, less exactly")
    effort.add_argument(
        "--thorough", action="store_true", help="measure everything three times, in several minutes"
    )
    effort.add_argument("--reuse", action="store_true", help="use an earlier profile; measure nothing")
    effort.add_argument(
        "--trace",
        metavar="NAME",
        help="trace an update instead, for example of ppo_sequential: writes a Chrome trace to "
        "profiles/traces/ and prints a table",
    )


def make_parser() -> Parser:
    """Return the parser of all flags."""
    parser = Parser(
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject(parser)
    add_efforts(parser)
    add = parser.add_argument
    add("--output-dir", type=Path, metavar="DIR", help="folder of the profile (default: profiles/)")
    add(
        "--write",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="write the recommendation as a configuration; the algorithm and mode come from the end of the "
        "file name, as in config/local_ppo_parallel.yaml, or from --algorithms and --modes",
    )
    add("--overwrite", action="store_true", help="let --write replace files")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def run(arguments: argparse.Namespace) -> int:
    """Measure, reuse or trace as the flags say; return the exit code. Raises UsageError or RunError."""
    folder = arguments.output_dir or profiles_folder()
    with StopSignal(forwards=True) as stop:
        progress = ProfileProgress()
        try:
            if arguments.trace is not None:
                return trace_update(arguments, folder, stop, progress)
            return profile_machine(arguments, folder, stop, progress)
        except Interrupted as interruption:
            progress.close()
            print("interrupted: nothing was written", file=sys.stderr)
            return interruption.exit_code
        finally:
            progress.close()


def profile_machine(
    arguments: argparse.Namespace, folder: Path, stop: StopSignal, progress: ProfileProgress
) -> int:
    """Write and print a profile; return EXIT_FAILED if a short run failed, else 0."""
    pairs = selected_pairs(arguments)
    configs = configurations(pairs, arguments)
    files, failed = files_to_write(arguments, pairs), False
    envs = environments(configs[pairs[0]], arguments.env)
    if arguments.reuse:
        path, profile = reuse(folder, configs, envs)
        source = f"from {path}"
    else:
        effort = EFFORTS["quick" if arguments.quick else "thorough" if arguments.thorough else "normal"]
        profile = measure(configs, envs, effort, folder, stop, progress)
        failed = any(each.reached is None for each in profile.results)
        path = save(profile, configs, folder)
        source = f"written to {path}, with .txt and .png beside it"
    progress.close()
    print(f"{describe_profile(profile, configs)}\n{source}")
    setups = {(each.algorithm, each.mode): each.setup for each in profile.results}
    for target, pair in files.items():
        write_setup(target, configs[pair], setups[pair], profile, arguments.overwrite)
        print(f"{' '.join(pair)}: {target}")
    return EXIT_FAILED if failed else 0


def trace_update(
    arguments: argparse.Namespace, folder: Path, stop: StopSignal, progress: ProfileProgress
) -> int:
    """Trace an update, print the table of operators, and return 0."""
    from rlcb.profiling.trace import trace

    config = traced_configuration(arguments)
    name, began = f"{config.algorithm} {config.mode}", time.monotonic()

    def show() -> None:
        text = f"running {name} until its second update is traced, {time.monotonic() - began:.0f} s"
        progress.show(0.0, text)

    show()
    traces = trace(config, folder / "traces", stop, show)
    progress.close()
    for path, table in traces:
        print(f"{path.stem.replace('_', ' ')}\n\n{table}\n\nwritten to {path}: open it in ui.perfetto.dev\n")
    return 0
