"""The command `rlcb quick-test`: use each part of the installation once and report what does not work.

Each check imports what it needs, so that a missing package is one line of the report.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import io
import math
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rlcb import cpu, errors
from rlcb.cli.completion import complete, completing
from rlcb.config.games import GAMES
from rlcb.paths import PROJECT
from rlcb.text import print_rows

if TYPE_CHECKING:
    from rlcb.config.config import Config
    from rlcb.training.trainer import Trainer

OLDEST, NEWEST = (3, 10), (3, 12)
SHOWN = ("torch", "numpy", "gymnasium", "procgen", "procgen-mirror")  # results depend on these versions
MARKS = {"ok": ("✓", "[ok]"), "warning": ("!", "[warn]"), "failed": ("✗", "[FAIL]")}


class CheckFailed(Exception):
    """A check failed; the message says why and what to do."""


class CheckWarning(Exception):
    """A check found a problem that does not prevent training."""


class Report:
    """Prints a line for each check and counts checks and failures."""

    def __init__(self) -> None:
        self.checks = 0
        self.failed = 0
        self.ascii = not _can_print("".join(mark for mark, _ in MARKS.values()))
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # the encoding may lack letters of a reason

    def line(self, status: str, name: str, text: str) -> None:
        """Print one line; `status` is ok, warning or failed."""
        mark = f"{MARKS[status][1]:<6}" if self.ascii else MARKS[status][0]
        head = f"{mark} {name:<14} "
        if status == "ok":
            print_rows({head: text}, indent=len(head))
        else:
            print(head + text)  # reasons and commands are not wrapped, so that they can be copied
        sys.stdout.flush()

    def run(self, name: str, check: Callable[[], str]) -> bool:
        """Run a check, print its line, and return True unless it failed."""
        if sys.stdout.isatty():
            print(f"  {name} ...", end="\r", flush=True)
        self.checks += 1
        try:
            self.line("ok", name, check())
        except CheckWarning as remark:
            self.line("warning", name, reason_of(remark))
        except Exception as error:  # a broken installation can raise anything
            self.failed += 1
            self.line("failed", name, explain(error))
            return False
        return True


def _can_print(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def explain(error: Exception) -> str:
    """Return in one line why a check failed, with the remedy if it is known."""
    if isinstance(error, CheckFailed):
        return reason_of(error)
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("rlcb"):
        return f"{error.name} is missing: pip install -r requirements.txt"
    return f"{type(error).__name__}: {reason_of(error)}"


# --- The machine and the packages ---------------------------------------------------------------------------


def check_python() -> str:
    """Check the version of Python. Like all checks, return the text of the report or raise."""
    fitting = " to ".join(".".join(map(str, version)) for version in (OLDEST, NEWEST))
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        raise CheckFailed(f"{platform.python_version()}, but Procgen needs {fitting}: see setup.sh")
    return f"{platform.python_version()} (supported: {fitting})"


def check_machine() -> str:
    import psutil

    facts, free = cpu.describe_machine(), psutil.virtual_memory().available / 2**30
    cores = f"{facts['usable_cores']} of {facts['physical_cores'] or '?'} cores usable"
    return f"{facts['cpu_model']}, {cores}, {facts['ram_gb']:.1f} GB of memory, {free:.1f} GB of it free"


def check_kernels() -> str:
    from rlcb.kernels.build import KernelsUnavailable
    from rlcb.kernels.library import load

    try:
        lanes = load().lanes
    except KernelsUnavailable as error:
        raise CheckWarning(f"none of our own, so PyTorch's are used: {error}") from error
    return f"native, compiled for this processor (vectors of {lanes} floats)"


def check_allocator() -> str:
    if not cpu.tune_allocator():
        raise CheckWarning("cannot be tuned with this C library: updates may be slower")
    return "keeps freed pages for reuse"


def check_packages(report: Report) -> str:
    """Check the packages of requirements.txt; print a line for each missing or mismatching one."""
    fitting, failed = [], 0
    requirements = required()
    for requirement in requirements:
        problem, purpose = (
            problem_of(requirement),
            OPTIONAL.get(requirement.name.lower()),
        )
        if problem is None:
            fitting.append(requirement.name)
        elif purpose is not None:
            report.line("warning", requirement.name, f"{problem} (for {purpose})")
        else:
            failed += 1
            report.line("failed", requirement.name, problem)
    if failed:
        raise CheckFailed(f"{failed} of {len(requirements)} packages do not match requirements.txt")
    versions = [f"{name} {installed_version(name)}" for name in fitting if name in SHOWN]
    return f"{len(fitting)} of {len(requirements)} match requirements.txt: {', '.join(versions)}"


# --- The parts of the program -------------------------------------------------------------------------------


def step_game(game: str, num_envs: int, steps: int) -> float:
    """Step a game with every action in turn and return the steps per second of all environments together."""
    import numpy as np

    from rlcb.config.settings import EnvConfig
    from rlcb.envs.procgen import NUM_ACTIONS, ProcgenVectorEnv

    env = ProcgenVectorEnv(game, EnvConfig(id=game, num_levels=200), [0], num_envs)
    try:
        observations = env.reset()[0]
        start = time.perf_counter()
        for step in range(steps):
            observations = env.step(np.full(num_envs, step % NUM_ACTIONS))[0]
        seconds = time.perf_counter() - start
    finally:
        env.close()
    if observations.shape != (num_envs, 64, 64, 3) or not observations.any():
        raise CheckFailed(f"{game} returns empty observations")
    return num_envs * steps / seconds


def check_games() -> str:
    for game in GAMES:
        step_game(game, 2, 5)
    speed = step_game("coinrun", 64, 100)
    return f"all {len(GAMES)} games of Procgen run; coinrun {speed:,.0f} steps/s in one thread"


def small_run(algorithm: str) -> Config:
    """Return a configuration with small rollouts of coinrun and the network of real runs."""
    from rlcb.config.yaml_file import build_config

    settings = {
        "algorithm": algorithm,
        # A3C has no sequential mode: use one worker.
        "mode": "parallel" if algorithm == "a3c" else "sequential",
        "parallel": {"num_workers": 1},
        "env": {"id": "coinrun", "num_envs": 8},
        "model": {"architecture": "impala"},
        "training": {
            "n_steps": 8,
            "batch_size": None,
            "n_epochs": 1,
            "normalize_advantages": algorithm != "impala",
        },
    }
    return build_config(settings, "quick test")


def make_trainer(config: Config) -> Trainer:
    from rlcb.training.base import ProcessSetup
    from rlcb.training.trainer import Trainer

    return Trainer(ProcessSetup(config, num_threads=cpu.choose_threads(None)))


def check_update(algorithm: str, checkpoint: Path) -> str:
    """Check that one update changes the network and gives finite metrics; save it as `checkpoint`."""
    from rlcb.training.checkpoint import save_checkpoint

    config = small_run(algorithm)
    trainer = make_trainer(config)
    try:
        before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        start = time.perf_counter()
        metrics = trainer.iterate(config.training.learning_rate).metrics
        seconds = time.perf_counter() - start
        invalid = [f"{name} = {value}" for name, value in metrics.items() if not math.isfinite(value or 0.0)]
        if invalid:
            raise CheckFailed(f"an update gave {', '.join(invalid)}")
        if all(old.equal(new) for old, new in zip(before, trainer.model.parameters())):
            raise CheckFailed("an update did not change the network")
        content = {"algorithm": algorithm, "mode": config.mode, "config": config.model_dump(mode="json")}
        save_checkpoint(checkpoint, {**content, **trainer.state(), "elapsed_seconds": seconds})
    finally:
        trainer.close()
    return f"one update, IMPALA-CNN, {config.timesteps_per_update} timesteps of coinrun: {seconds:.1f} s"


def check_checkpoint(algorithm: str, checkpoint: Path) -> str:
    """Check that a loaded checkpoint has the saved parameters and counters."""
    import torch

    from rlcb.training.checkpoint import load_checkpoint

    saved = load_checkpoint(checkpoint)
    trainer = make_trainer(small_run(algorithm))
    try:
        trainer.load(saved)
        loaded = trainer.learner.state()["model"]
    finally:
        trainer.close()
    weights = saved["learner"]["model"]
    differing = [name for name, value in weights.items() if not torch.equal(value, loaded[name])]
    if differing or trainer.counters.updates != 1:
        raise CheckFailed(f"changed by saving and loading: {', '.join(differing) or 'the counters'}")
    return f"saved, {checkpoint.stat().st_size / 2**20:.1f} MB, and loaded unchanged"


def check_evaluation(checkpoint: Path) -> str:
    from rlcb.evaluation.evaluation import evaluate

    result = evaluate(checkpoint, episodes=2, split="test", max_episode_steps=50)
    played = result["splits"]["test"]["episodes"]
    return f"{played} episodes of at most 50 steps on unseen levels of coinrun"


def check_learning(report: Report, folder: Path) -> None:
    """Check one update of each algorithm, then load and evaluate the checkpoint of the first."""
    algorithms: list[str] = []

    def find() -> str:
        import rlcb.training.trainer  # noqa: F401 - imports all algorithms
        from rlcb.training.base import UPDATES

        cpu.set_torch_threads(cpu.choose_threads(None))
        algorithms.extend(UPDATES)
        return ", ".join(name.upper() for name in algorithms)

    if not report.run("algorithms", find):
        return
    learned = []
    for name in algorithms:
        path = folder / f"{name}_final.pt"
        if report.run(name.upper(), partial(check_update, name, path)):
            learned.append((name, path))
    for name, path in learned[:1]:
        if report.run("checkpoint", partial(check_checkpoint, name, path)):
            report.run("evaluation", partial(check_evaluation, path))


def check_tensorboard() -> str:
    """Check TensorBoard; training works without it, so this only warns."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: F401
    except Exception as error:
        raise CheckWarning(f"no live curves: {explain(error)}") from error
    return "can be imported"


class BareParser(argparse.ArgumentParser):
    """A parser that needs only the standard library, since packages may be missing."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `rlcb quick-test` and quick_test.py; return the exit code, 1 if a check failed."""
    text = "Check the installation: one line for each check, exit code 0 if everything works, else 1."
    parser = BareParser(description=text, allow_abbrev=False)
    if completing():
        complete(parser)
    parser.parse_args(argv)
    return verify_installation()


def verify_installation() -> int:
    """Run all checks and print a line for each; return the exit code, 1 if one failed."""
    start = time.perf_counter()
    cpu.set_thread_environment(cpu.choose_threads(None))  # before torch is imported
    report = Report()
    report.run("Python", check_python)
    report.run("machine", check_machine)
    report.run("allocator", check_allocator)
    report.run("kernels", check_kernels)
    report.run("packages", partial(check_packages, report))
    report.run("games", check_games)
    with tempfile.TemporaryDirectory() as folder:
        check_learning(report, Path(folder))
    report.run("TensorBoard", check_tensorboard)
    seconds = time.perf_counter() - start
    if report.failed:
        print(f"\n{report.failed} of {report.checks} checks failed. To repair venv/: ./setup.sh")
        return 1
    print(f"\nEverything works: {report.checks} checks in {seconds:.0f} s. Next: make benchmark")
    return 0


if TYPE_CHECKING:  # may be missing, which the caller reports
    from packaging.requirements import Requirement

REQUIREMENTS = PROJECT / "requirements.txt"
# Modules whose names differ from their packages.
MODULES = {"pyyaml": "yaml", "procgen-mirror": "procgen"}
# Packages that training and evaluation do not need, and what does need them.
OPTIONAL = {"tensorboard": "curves in the browser", "argcomplete": "completion with the Tab key"}


def reason_of(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    return errors.first_line(error) or "no reason given"


def required() -> list[Requirement]:
    """Return the requirements in requirements.txt that apply to this Python and system."""
    from packaging.requirements import Requirement

    lines = (line.split("#")[0].strip() for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines())
    requirements = [Requirement(line) for line in lines if line]
    return [each for each in requirements if each.marker is None or each.marker.evaluate()]


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def problem_of(requirement: Requirement) -> str | None:
    """Return what is wrong with a package and the pip command that repairs it.

    None if its version matches and it can be imported.
    """
    name, wanted = requirement.name.lower(), f"'{requirement.name}{requirement.specifier}'"
    version = installed_version(name)
    if version is None:
        return f"is not installed: pip install {wanted}"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"is {version}, wanted {requirement.specifier}: pip install {wanted}"
    try:
        # Old Gym prints at every import that it is unmaintained.
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(MODULES.get(name, name.replace("-", "_")))
    except Exception as error:  # a broken package may raise anything
        reason = f"{type(error).__name__}: {reason_of(error)}"
        return f"cannot be imported ({reason}): pip install --force-reinstall {wanted}"
    return None
