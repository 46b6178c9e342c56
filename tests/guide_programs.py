"""The programs within the commands of the guides: what they are, the flags as they read them."""

from __future__ import annotations

import argparse
import importlib
import io
import itertools
import re
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlcb.cli import train, train_distributed
from tests import runs

OLD_NAMES = {
    "train_timed.py": ("ppo", "sequential", True),
    "train_parallel_timed.py": ("ppo", "parallel", True),
}
COMMANDS = {
    "train": "train.py",
    "evaluate": "evaluate.py",
    "compare": "compare_results.py",
    "benchmark": "run_benchmark.py",
    "tune": "tune.py",
    "plot": "plot_results.py",
    "profile": "profile_cpu.py",
    "quick-test": "quick_test.py",
    "check-cluster": "rlcb.cli.check_cluster",
    "join": "rlcb.cli.join",
    "status": "rlcb.cli.status",
    "export": "rlcb.cli.export",
}
"""What `rlcb COMMAND` runs, by COMMAND."""
SCRIPT = re.compile(r"train_([a-z0-9]+)_(sequential|parallel|distributed)(_timed)?\.py")


@dataclass(frozen=True)
class Program:
    """A program of the project within a command: a script or a module, what starts it, and its flags."""

    name: str
    launcher: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def training(self) -> tuple[str, str, bool | None] | None:
        """Algorithm, mode and whether it is timed, of a training script."""
        if self.name == "train.py":
            return self.value("--algorithm") or "ppo", self.value("--mode") or "parallel", None
        name = SCRIPT.fullmatch(self.name)
        return OLD_NAMES.get(self.name) or (name and (name[1], name[2], name[3] is not None))

    @property
    def started_plainly(self) -> bool:
        plain = [word for word in self.launcher if not re.match(r"\w+=", word)]
        return plain in ([], ["python"], ["venv/bin/python"])

    def value(self, flag: str) -> str | None:
        return self.flags[self.flags.index(flag) + 1] if flag in self.flags else None


def program_of(words: Sequence[str], project: Path = runs.PROJECT) -> Program | None:
    """Return the program that a command starts, or None if it does not belong to the project.

    A redirection, which starts with `>`, ends the program's flags.
    """
    words = list(itertools.takewhile(lambda word: word != ">", words))
    for index, word in enumerate(words):
        if word == "rlcb" and words[index + 1] in COMMANDS:
            return Program(COMMANDS[words[index + 1]], tuple(words[:index]), tuple(words[index + 2 :]))
        if word.endswith(".py") and (project / word).is_file():
            return Program(word, tuple(words[:index]), tuple(words[index + 1 :]))
        if word == "-m" and words[index + 1].startswith(("rlcb.", "perf.")):
            return Program(words[index + 1], tuple(words[:index]), tuple(words[index + 2 :]))
    return None


class Parsed(BaseException):
    """Carries the flags that a program understood, from where it read them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments


def parse(program: Program) -> argparse.Namespace:
    """The flags as the program itself reads them, which then goes no further. Raises AssertionError."""
    real = argparse.ArgumentParser.parse_args

    def parse_args(parser: Any, args: Any = None, namespace: Any = None) -> Any:
        raise Parsed(real(parser, args, namespace))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        try:
            result = call(program.name, program.flags)
        except Parsed as parsed:
            return parsed.arguments
    raise AssertionError(f"{program.name} {' '.join(program.flags)}: {result.text}")


def resolve(program: Program, arguments: argparse.Namespace) -> None:
    """Build the configuration that a training script would train with. Raises UsageError."""
    assert program.training is not None
    algorithm, mode, _ = program.training
    if mode == "distributed":
        data = train_distributed.settings(arguments, algorithm)
        workers = {} if algorithm == "impala" else {"num_workers": 1}
        data["cluster"] = {**(data.get("cluster") or {}), "num_nodes": 1, **workers}
        train_distributed.build_config(data)
    elif not arguments.resume:
        train.resolve_config(arguments)


@dataclass
class Result:
    code: int
    text: str


def call(name: str, flags: Sequence[str]) -> Result:
    """Run a script or module in this process, which has everything loaded already."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for loaded in (name, f"{name}.__main__"):  # runpy warns of a module that runs a second time
            patch.delitem(sys.modules, loaded, raising=False)
        work: Any = partial(runpy.run_module, name, run_name="__main__", alter_sys=True)
        if name.endswith(".py"):
            work = partial(runpy.run_path, str(runs.PROJECT / name), run_name="__main__")
        elif name in COMMANDS.values():  # a command without a script
            work = partial(importlib.import_module(name).main, list(flags))
        return Result(runs.run_in_process(name, flags, work, output, output), output.getvalue())
