"""Walking through a guide: its commands in order, each parsed as its program does and most run, with small
budgets."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlcb import api
from rlcb.processes import machine_load, subprocesses
from rlcb.study import runner
from rlcb.tuning import tuner
from tests import runs
from tests.guide_blocks import Block, Command
from tests.guide_programs import Program, Result, call, parse, program_of, resolve

# Commands that a test cannot run, by their first word.
NOT_OURS = {
    "git": "fetches the project",
    "source": "changes the reader's shell",
    "./setup.sh": "installs packages; tests/test_setup.py",
    "pip": "installs packages; continuous integration has the extras",
    "make": "its targets are run by tests/test_setup.py; here they must exist",
    "tensorboard": "a server",
    "nohup": "stays in the background",
    "srun": "needs a SLURM; tests/system/test_slurm.py",
    "sbatch": "needs a SLURM; tests/system/test_slurm.py",
    "qsub": "needs a PBS; tests/system/test_hosts.py",
    "torchrun": "needs all of its nodes; tests/cluster/test_distributed_training.py",
    "cluster/run_by_hand.sh": "needs other machines; tests/system/test_hosts.py",
}
SHELL = ("cp", "tail", "head", "cat", "ls", "mkdir")  # run as they are
SIZES = {"env.num_envs": "4", "training.n_steps": "8", "logging.snapshot_seconds": "0"}
TIMESTEPS = 64
CAP = ("--max-episode-steps", "30")


def shrink_training(program: Program, starts: int) -> list[str]:
    """The flags of a training script: few environments, and two updates more than its run had before."""
    assert program.training is not None
    algorithm, mode, _ = program.training
    processes = {} if mode == "sequential" else {"parallel.num_workers": "2"}
    if mode == "distributed":
        processes = {"cluster.num_workers": "2"}
    flags = without(program.flags, ("--num-workers", "--num-envs-per-worker", "--num-actors", "--num-envs"))
    if algorithm == "impala" and mode != "sequential":
        processes = {"impala.num_actors": "1", "impala.num_learners": "1"}
    sizes = {**SIZES, **processes, "training.batch_size": "16" if algorithm == "ppo" else "null"}
    small = [word for key, value in sizes.items() for word in ("--set", f"{key}={value}")]
    return [*flags, "--total-timesteps", str(TIMESTEPS * (starts + 1)), *small]


def run_python(block: Block) -> None:
    """Run a Python example of a guide; `rlcb.train` trains with few environments for two updates."""
    real = api.train

    def train(algorithm: str = "ppo", mode: str = "parallel", **options: Any) -> api.Run:
        sizes = {key: int(value) for key, value in SIZES.items()}
        sizes |= {"training.batch_size": 16} if algorithm == "ppo" else {}
        sizes |= {"parallel.num_workers": 2} if mode == "parallel" else {}
        options["settings"] = {**options.get("settings", {}), **sizes}
        return real(algorithm, mode, **options, total_timesteps=2 * TIMESTEPS)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "train", train)
        exec(compile(block.text, block.place, "exec"), {"__name__": "example"})


def without(flags: Sequence[str], names: Sequence[str]) -> list[str]:
    """Flags less those of some names, each with its value."""
    kept, skip = [], False
    for flag in flags:
        if not skip and flag not in names:
            kept.append(flag)
        skip = not skip and flag in names
    return kept


def cut(flags: list[str], name: str, most: int) -> None:
    """Leave at most so many values of a flag that takes several."""
    if name in flags:
        first = flags.index(name) + 1
        count = next((i for i, word in enumerate(flags[first:]) if word.startswith("--")), len(flags) - first)
        del flags[first + most : first + count]


def shrink_study(program: Program) -> list[str]:
    """The flags of a study, for one game and two seeds of sequential runs at the most."""
    flags = without(program.flags, ("--duration", "--total-timesteps", "--evaluate-episodes", "--cooldown"))
    begins = "--algorithms" in flags or "--study" in flags
    if begins:
        cut(flags, "--seeds", 2)
        cut(flags, "--envs", 1)
        sizes = [word for key, value in SIZES.items() for word in ("--set", f"{key}={value}")]
        flags += [*sizes, "--modes", "sequential", "--total-timesteps", str(TIMESTEPS)]
        flags += ["--set", "ppo:training.batch_size=16"] if "ppo" in flags else []
    return [*flags, "--evaluate-episodes", "2"]


def shrink_tuning(program: Program) -> list[str]:
    """The flags of a tuning, for one trial of sequential runs of each algorithm that has that mode, on one
    game."""
    flags = without(program.flags, ("--duration", "--total-timesteps", "--trials", "--mode"))
    if "--algorithms" not in flags:
        return flags
    cut(flags, "--envs", 1)
    if "a3c" in flags:
        flags.remove("a3c")
    sizes = {**SIZES, "ppo:training.batch_size": "16"} if "ppo" in flags else SIZES
    fixed = [word for key, value in sizes.items() for word in ("--set", f"{key}={value}")]
    return [*flags, *fixed, "--mode", "sequential", "--trials", "1", "--total-timesteps", str(TIMESTEPS)]


def run_in_process(
    command: Sequence[str], log: Path, stop: object, on_start: Any, on_poll: object, descriptors: object = ()
) -> int:
    """Run a program of a study here, `python -m rlcb COMMAND ...`, instead of starting a process for it."""
    _, dash_m, module, *flags = command
    assert dash_m == "-m", command
    result = call(module, [*flags, *(CAP if flags[0] == "evaluate" else ())])
    log.write_text(result.text, encoding="utf-8")
    on_start(os.getpid())
    return result.code


@dataclass
class Walk:
    """Runs the commands of guides in order, in one folder that looks like a clone."""

    folder: Path
    needed: frozenset[str]
    """Folders of runs of several processes that later commands need: the others are only parsed."""
    starts: dict[str, int] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    """What commands printed, by their text."""
    only_parsed: dict[str, str] = field(default_factory=dict)
    """Commands that were not run, with the reason."""
    examples: set[str] = field(default_factory=set)
    """Places of the Python examples that were run."""

    def __post_init__(self) -> None:
        for name in ("config", "cluster"):  # copies: what a command writes there must not reach the project
            shutil.copytree(runs.PROJECT / name, self.folder / name)

    def take(self, command: Command) -> None:
        """Parse a command, and run it if that can be. Raises AssertionError with its place."""
        if command.text in self.printed or command.text in self.only_parsed:
            return
        try:
            reason = self.why_not(command)
            if reason is None:
                self.printed[command.text] = self.run(command)
            else:
                self.only_parsed[command.text] = reason
        except Exception as error:
            raise AssertionError(f"{command.place}: {command.text}: {error}") from error

    def take_python(self, block: Block) -> None:
        """Run a Python example, once."""
        if block.place not in self.examples:
            self.examples.add(block.place)
            run_python(block)

    def why_not(self, command: Command) -> str | None:
        """Check what can be checked without running it; the reason why it cannot be run, if there is one."""
        words, program = command.words, program_of(command.words)
        for word in words:
            if word.startswith(("cluster/", "config/", "perf/")) and not word.startswith("config/local_"):
                assert (runs.PROJECT / word).exists(), f"there is no {word}"
        if program is not None and "--help" in words:
            return None
        if program is not None:
            arguments = parse(program)
            if program.training is not None:
                resolve(program, arguments)
            if not program.started_plainly:
                return NOT_OURS[next(word for word in words if not re.match(r"\w+=", word))]
            if program.name.startswith("perf.") or program.name == "rlcb.cli.check_cluster":
                return "measures for minutes"
            if program.name == "rlcb.cli.join":
                return "takes part in a run on another machine"
            if program.name in ("quick_test.py", "profile_cpu.py"):
                return "has a test of its own"
            if "--render" in words:
                return "--render opens a window"
            several = program.training is not None and program.training[1] != "sequential"
            return (
                "starts processes" if several and program.value("--output-dir") not in self.needed else None
            )
        if words[0] == "make":
            check_target(words)
        if words[0] in SHELL:
            return None
        assert words[0] in NOT_OURS, "neither a program of the project nor one that is known not to be run"
        return NOT_OURS[words[0]]

    def run(self, command: Command) -> str:
        program = program_of(command.words)
        if program is None:
            done = subprocess.run(
                command.text,
                shell=True,
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
            result = Result(done.returncode, done.stdout + done.stderr)
        elif "--help" in program.flags or "--dry-run" in program.flags:
            result = call(program.name, program.flags)
        elif "slurm" in program.flags:  # tests/system/test_slurm.py runs a study's jobs
            result = call(program.name, [*program.flags, "--dry-run"])
        elif program.training is not None:
            result = self.train(program)
        elif program.name == "run_benchmark.py":
            result = self.study(program)
        elif program.name == "tune.py":
            result = self.tuning(program)
        else:
            result = call(program.name, [*program.flags, *self.further(program)])
        assert result.code == 0, result.text[-2000:]
        return result.text

    def further(self, program: Program) -> tuple[str, ...]:
        if program.name.startswith("evaluate"):
            return ("--num-episodes", "2", "--video-episodes", "1", *CAP)
        return ("--bootstrap-samples", "100") if program.name == "compare_results.py" else ()

    def train(self, program: Program) -> Result:
        folder = program.value("--output-dir") or ""
        flags = shrink_training(program, self.starts.get(folder, 0))
        self.starts[folder] = self.starts.get(folder, 0) + bool(folder)
        assert program.training is not None
        if program.training[1] == "sequential":
            return call(program.name, flags)
        done = runs.run(program.name, *flags, cwd=self.folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return Result(done.returncode, done.stdout + done.stderr)

    def study(self, program: Program) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RL_BENCHMARK_LOCK", str(self.folder / "lock"))
            patch.setattr(runner, "run_logged", run_in_process)
            patch.setattr(runner, "measure_load", lambda: machine_load.measure_load(0.01))
            patch.setattr(subprocesses, "POLL_SECONDS", 0.01)
            return call(program.name, shrink_study(program))

    def tuning(self, program: Program) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RL_BENCHMARK_LOCK", str(self.folder / "lock"))
            patch.setattr(tuner, "run_logged", run_in_process)
            return call(program.name, shrink_tuning(program))


def check_target(words: Sequence[str]) -> None:
    """Raise AssertionError unless the Makefile has the target and the names that are set."""
    makefile = (runs.PROJECT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):.*  ## ", makefile, re.MULTILINE))
    names = set(re.findall(r"^([A-Z_]+) [?:]?= ?", makefile, re.MULTILINE))
    for word in words[1:]:
        name, separator, _ = word.partition("=")
        assert name in (names if separator else targets), f"the Makefile has no {name}"


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRACKIO_DIR", str(folder / "trackio"))
            yield
    finally:
        os.chdir(before)
