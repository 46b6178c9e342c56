"""The command line of profile_cpu.py."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlcb.cli.command import Parser, exit_code
from rlcb.config.algorithms import ALGORITHMS, ONE_MACHINE
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
Know your machine: measure, in two to three minutes, what limits training here
and what share of it this project reaches; recommend workers, actors, threads,
environments and microbatch. Leave the machine alone meanwhile.
"""

EXAMPLES = """
examples:
  Everything, for the network and game of the configurations:
    profile_cpu.py

  The Nature network on starpilot; coinrun's speed as well:
    profile_cpu.py --network nature --env starpilot coinrun

  Write the recommendation as a configuration and train with it:
    profile_cpu.py --write config/local_ppo_parallel.yaml
    train_parallel_timed.py --config config/local_ppo_parallel.yaml

  The same from the profile that is there, without measuring again:
    profile_cpu.py --reuse --write config/local_impala_parallel.yaml

  Where the time of an update goes, operator by operator:
    profile_cpu.py --trace ppo_sequential

A profile is a JSON, a text and a picture (the roofline) in profiles/, named by
machine and network. Training runs look for it there: their
benchmark_metrics.json then says what share of the limit they reached. One made
on other hardware, with another torch, network or game is not used.
"""


def add_subject(parser: Parser) -> None:
    """What the limits and the recommendations are of."""
    add = parser.add_argument
    add(
        "--network",
        choices=("impala", "nature"),
        help="that of the limits (default: as the configurations say)",
    )
    add(
        "--env",
        nargs="+",
        metavar="ID",
        help="the environment of the limits (default: as the configurations say), and others whose speed is "
        "measured as well, so that their runs know their limit too; all: every Procgen game",
    )
    add(
        "--algorithms",
        nargs="+",
        type=str.lower,
        choices=ALGORITHMS,
        metavar="NAME",
        help=f"{' '.join(ALGORITHMS)} (default: all)",
    )
    add(
        "--modes",
        nargs="+",
        type=str.lower,
        choices=ONE_MACHINE,
        metavar="NAME",
        help=f"{' '.join(ONE_MACHINE)} (default: both)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting of the configurations, for example model.hidden_size=512",
    )


def add_efforts(parser: Parser) -> None:
    """How much is measured, if anything is."""
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="measure little: a minute, less exact")
    effort.add_argument("--thorough", action="store_true", help="everything three times: several minutes")
    effort.add_argument("--reuse", action="store_true", help="use the profile that is there; measure nothing")
    effort.add_argument(
        "--trace",
        metavar="NAME",
        help="trace an update instead, as ppo_sequential: a Chrome trace in profiles/traces/ and a table",
    )


def make_parser() -> Parser:
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
        help="write the recommendation for the algorithm and mode that the name ends in, "
        "as config/local_ppo_parallel.yaml, or that the flags name",
    )
    add("--overwrite", action="store_true", help="let --write replace files")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; returns its exit code."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def run(arguments: argparse.Namespace) -> int:
    """Do what the flags say. Raises UsageError or RunError."""
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
    """Returns EXIT_FAILED if a short run failed; everything else is written all the same."""
    pairs = selected_pairs(arguments)
    configs = configurations(pairs, arguments)
    files, failed = files_to_write(arguments, pairs), False
    envs = environments(configs[pairs[0]], arguments.env)
    if arguments.reuse:
        path, profile = reuse(folder, configs, envs)
        whence = f"from {path}"
    else:
        effort = EFFORTS["quick" if arguments.quick else "thorough" if arguments.thorough else "normal"]
        profile = measure(configs, envs, effort, folder, stop, progress)
        failed = any(each.reached is None for each in profile.results)
        path = save(profile, configs, folder)
        whence = f"written to {path}, with .txt and .png beside it"
    progress.close()
    print(f"{describe_profile(profile, configs)}\n{whence}")
    setups = {(each.algorithm, each.mode): each.setup for each in profile.results}
    for target, pair in files.items():
        write_setup(target, configs[pair], setups[pair], profile, arguments.overwrite)
        print(f"{' '.join(pair)}: {target}")
    return EXIT_FAILED if failed else 0


def trace_update(
    arguments: argparse.Namespace, folder: Path, stop: StopSignal, progress: ProfileProgress
) -> int:
    """Trace an update of a training script."""
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
