"""What is compared: the workloads, who runs them and how, and what the figures are held against."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perf.training_runs import command
from rlcb import cpu
from rlcb.config.config import largest_divisor
from rlcb.config.settings import ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.errors import UsageError
from rlcb.rl.models import make_model

FRAMES = Spaces((64, 64, 3), "uint8", 15)
FOREVER = 10**12  # timesteps: every program is ended from outside


@dataclass(frozen=True)
class Case:
    """A workload, the same for all sides. `batch_size` and `n_epochs` are PPO's."""

    name: str
    algorithm: str
    network: str
    hidden_size: int
    num_envs: int
    n_steps: int
    batch_size: int | None
    n_epochs: int
    learning_rate: float
    ent_coef: float
    sides: tuple[str, ...]

    @property
    def num_parameters(self) -> int:
        """The number of parameters of this project's network."""
        config = ModelConfig.model_validate({"architecture": self.network, "hidden_size": self.hidden_size})
        return sum(each.numel() for each in make_model(config, FRAMES, seed=1).parameters())

    def describe(self) -> str:
        network = {"impala": "IMPALA-CNN (16, 32, 32", "nature": "Nature CNN (32, 64, 64"}[self.network]
        learning = "one step on the whole rollout"
        if self.algorithm == "ppo":
            learning = f"{self.n_epochs} epochs, minibatches of {self.batch_size}"
        return (
            f"{self.algorithm.upper()}, {network}; {self.hidden_size}), {self.num_envs} environments x "
            f"{self.n_steps} steps, {learning}"
        )


LIKE_SB3 = ("sequential", "parallel", "sb3", "sb3-pages")
OTHERS = ("plain", "sample-factory", "sample-factory-serial")
CASES = (
    Case(
        "ppo-impala", "ppo", "impala", 256, 32, 32, 1024, 4, 5e-4, 0.01,
        (*LIKE_SB3, "parallel-bf16", "cleanrl", *OTHERS),
    ),
    Case(
        "ppo-impala-256", "ppo", "impala", 256, 32, 32, 256, 4, 5e-4, 0.01,
        (*LIKE_SB3, "cleanrl"),
    ),
    Case(
        "ppo-nature", "ppo", "nature", 512, 64, 64, 512, 3, 5e-4, 0.01,
        (*LIKE_SB3, "parallel-bf16", *OTHERS),
    ),
    Case("a2c-impala", "a2c", "impala", 256, 32, 16, None, 1, 1e-3, 0.001, LIKE_SB3),
    Case("a2c-nature", "a2c", "nature", 512, 32, 16, None, 1, 1e-3, 0.001, LIKE_SB3),
)  # fmt: skip

OWN = "this project"


@dataclass(frozen=True)
class Side:
    """A program that runs a workload: this project or another library."""

    title: str
    peer: str
    """The environment that it runs in: a peer of perf/peers/install.py, or OWN."""
    command: Callable[[Case, Path, Path], list[str]]
    """(case, Python, folder for what it leaves) -> the words that start it."""
    own_rows: bool = False
    """Whether it leaves metrics.jsonl, as this project's scripts do, instead of printing how far it is."""


def own_script(mode: str, *settings: str) -> Callable[[Case, Path, Path], list[str]]:
    """This project's own script, as a user starts it."""

    def words(case: Case, python: Path, folder: Path) -> list[str]:
        flags: list[object] = ["--num-envs", case.num_envs, "--n-steps", case.n_steps]
        flags += ["--env", "coinrun", "--total-timesteps", FOREVER, "--seed", 1]
        if case.algorithm == "ppo":
            assert case.batch_size is not None
            flags += ["--batch-size", case.batch_size, "--n-epochs", case.n_epochs]
        if mode == "parallel":
            flags += ["--num-workers", largest_divisor(case.num_envs, cpu.usable_cores())]
        network = (f"model.architecture={case.network}", f"model.hidden_size={case.hidden_size}")
        script = f"train.py --algorithm {case.algorithm} --mode {mode}"
        return command(script, str(folder / "run"), flags, (*network, *settings))

    return words


def program(name: str, **options: bool) -> Callable[[Case, Path, Path], list[str]]:
    """A program of perf/peers/programs/ with a case's settings and with `options`."""

    def words(case: Case, python: Path, folder: Path) -> list[str]:
        settings = json.dumps({**given(case), **options})
        return [str(python), "-m", f"perf.peers.programs.{name}", settings]

    return words


def given(case: Case) -> dict[str, Any]:
    """The settings of a peer's program: those that this project's scripts have for the case."""
    shared = {"gamma": 0.999, "gae_lambda": 0.95, "clip_range": 0.2, "vf_coef": 0.5, "max_grad_norm": 0.5}
    settings = {key: value for key, value in asdict(case).items() if key not in ("name", "sides")}
    return {**settings, **shared, "tune_allocator": False}


SIDES = {
    "sequential": Side("this project, sequential", OWN, own_script("sequential"), own_rows=True),
    "parallel": Side("this project, parallel", OWN, own_script("parallel"), own_rows=True),
    "parallel-bf16": Side(
        "this project, parallel, bfloat16",
        OWN,
        own_script("parallel", "model.precision=bfloat16"),
        own_rows=True,
    ),
    "sb3": Side("Stable-Baselines3", "sb3", program("sb3")),
    "sb3-pages": Side("Stable-Baselines3, pages reused", "sb3", program("sb3", tune_allocator=True)),
    "cleanrl": Side("CleanRL, ppo_procgen", "cleanrl", program("cleanrl")),
    "plain": Side("plain loop, Shimmy in SyncVectorEnv", OWN, program("plain_loop")),
    "sample-factory": Side("Sample Factory, APPO", "sample-factory", program("sample_factory", serial=False)),
    "sample-factory-serial": Side(
        "Sample Factory, serial", "sample-factory", program("sample_factory", serial=True)
    ),
}
BASE = "sb3"
BFLOAT16 = ("parallel-bf16",)  # sides for processors that have instructions for it


@dataclass(frozen=True)
class Bar:
    """A bar for a ratio: timesteps per second must reach it, memory must stay below it."""

    case: str
    side: str
    base: str
    bar: float
    aim: float | None = None
    memory: bool = False


BARS = (
    Bar("ppo-impala", "parallel", "sb3", 5.5, aim=6.5),
    Bar("ppo-impala", "parallel", "sb3-pages", 2.7, aim=3.2),
    Bar("ppo-impala", "parallel", "cleanrl", 3.0, aim=3.5),
    Bar("ppo-impala", "parallel", "parallel-bf16", 1.1, aim=1.3),
    Bar("ppo-impala", "sequential", "sb3", 2.0),
    Bar("ppo-impala", "sequential", "sb3", 0.5, memory=True),
    Bar("ppo-impala-256", "parallel", "sb3", 3.0, aim=5.0),
    Bar("ppo-impala-256", "parallel", "sb3-pages", 1.6),
    Bar("ppo-impala-256", "sequential", "sb3", 2.0),
    Bar("ppo-impala-256", "sequential", "sb3", 0.5, memory=True),
    Bar("ppo-nature", "parallel", "sb3", 1.7, aim=2.0),
    Bar("ppo-nature", "parallel", "sb3-pages", 1.4, aim=1.6),
    Bar("ppo-nature", "sequential", "sb3", 1.4),
    Bar("ppo-nature", "sequential", "sb3", 0.5, memory=True),
    Bar("a2c-impala", "parallel", "sb3", 5.0, aim=6.0),
    Bar("a2c-nature", "parallel", "sb3", 1.5),
)


def chosen_cases(names: list[str] | None, sides: list[str] | None = None) -> tuple[Case, ...]:
    """The cases of these names with these sides, in their own order; without names or sides all. Raises
    UsageError for an unknown one."""
    for flag, given, known in (("cases", names, [case.name for case in CASES]), ("sides", sides, SIDES)):
        for name in given or ():
            if name not in known:
                raise UsageError(f"--{flag} {name}: unknown; there are {', '.join(known)}")
    chosen = [
        replace(case, sides=tuple(side for side in case.sides if not sides or side in sides))
        for case in CASES
        if not names or case.name in names
    ]
    return tuple(case for case in chosen if case.sides)
