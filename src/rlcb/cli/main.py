"""The command `rlcb`: its list of commands, and the call of the one that was asked for.

A command's module is imported only when it runs, so `rlcb --help` does not load torch.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from rlcb import __version__
from rlcb.cli.completion import complete, completing, skip_word, typed_words
from rlcb.errors import EXIT_USAGE
from rlcb.suggestion import did_you_mean

COMMANDS = {
    "train": ("rlcb.cli.train", "train PPO, A2C, A3C or IMPALA in one process, several, or on several nodes"),
    "join": ("rlcb.cli.join", "lend the cores of this machine to an IMPALA run on another machine"),
    "evaluate": ("rlcb.cli.evaluate", "play episodes with a checkpoint, or with the random policy"),
    "compare": ("rlcb.cli.compare", "compare runs: statistics, tables, plots and an HTML page"),
    "benchmark": ("rlcb.cli.benchmark", "train, evaluate and compare algorithms x modes x games x seeds"),
    "tune": ("rlcb.cli.tune", "search hyperparameters with equal effort for each algorithm"),
    "plot": ("rlcb.cli.plot", "draw the training curves of a run"),
    "export": ("rlcb.cli.export", "write the policy of a run into a folder for a model hub"),
    "status": ("rlcb.cli.status", "print the progress of runs and studies, from their files"),
    "tensorboard": ("rlcb.cli.tensorboard", "show runs in the browser, under short names"),
    "profile": ("rlcb.cli.profile", "measure this machine and get advice on its settings"),
    "quick-test": ("rlcb.cli.quick_test", "check the installation in less than a minute"),
    "check-cluster": (
        "rlcb.cli.check_cluster",
        "measure the nodes of a cluster and the network between them",
    ),
}

HELP = """\
usage: rlcb COMMAND [FLAGS]
       rlcb COMMAND --help

Which reinforcement-learning algorithm and execution mode learns most on the Procgen games per hour of your
CPUs?

commands:
{commands}

First steps:
  rlcb quick-test                                        check that everything works here
  rlcb train --env coinrun --duration 6m                 train PPO in several processes for six minutes
  rlcb train --algorithm impala --mode parallel --help   the flags of another algorithm or mode
  rlcb benchmark --algorithms ppo impala --modes parallel --envs coinrun --seeds 1 2 3 --duration 30m
                                                         compare algorithms: train, evaluate, report

Ctrl-C stops a run safely; `rlcb train ... --resume --output-dir DIR` continues it.
"""


def help_text() -> str:
    """Return the text of `rlcb --help`."""
    return HELP.format(commands="\n".join(f"  {name:<15}{text}" for name, (_, text) in COMMANDS.items()))


def command_words() -> list[str]:
    """Return the words of a command line whose completion the shell asks for, from the command's name on.

    If there is no command yet, print the commands and end the process.
    """
    words = typed_words()
    if not words:
        parser = argparse.ArgumentParser(prog="rlcb")
        parser.add_argument("--version", action="store_true")
        parser.add_argument("command", choices=COMMANDS)
        complete(parser)
    skip_word()
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Run `rlcb` with the words of a command line (default: those of this process); return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if completing():
        words = command_words()
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return 0 if words else EXIT_USAGE
    if words[0] == "--version":
        print(f"rlcb {__version__}")
        return 0
    name, *flags = words
    if name not in COMMANDS:
        known = ", ".join(COMMANDS) + did_you_mean(name, COMMANDS)
        print(f"rlcb: error: unknown command {name!r}; the commands are {known}", file=sys.stderr)
        return EXIT_USAGE
    sys.argv = [f"rlcb {name}", *flags]  # the program's name in help texts and error messages
    code: int = importlib.import_module(COMMANDS[name][0]).main(argv=flags)
    return code
