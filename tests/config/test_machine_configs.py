"""The configurations for machine classes and of the Procgen paper: what they say, and that they train.

Every file is read and validated as it is. A whole update of some of them takes minutes on two cores, so they
train with everything as in the file (environments, workers and actors, number of minibatches, epochs, losses,
optimizer) but for two things: shorter rollouts with minibatches cut in proportion, and a small Nature
network. All sequential files train; of the parallel ones three do: one with the most workers, one with
actors, and the paper's.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from rlcb.cli.train import main
from rlcb.config.config import Config, flat_settings
from rlcb.config.yaml_file import build_config, read_config_file
from tests import runs

FOLDER = runs.PROJECT / "config"
MACHINES = ("ryzen7", "highend")
ALGORITHMS = ("ppo", "impala", "a2c")
N_STEPS, UPDATES = 4, 2
PROCESS_GB = 0.35  # Procgen's pictures, torch and the interpreter
FRAME_BYTES = 64 * 64 * 3


def read(stem: str) -> Config:
    path = FOLDER / f"{stem}.yaml"
    return build_config(read_config_file(path), path.name)


# --- What they say ---


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize(
    ("machine", "algorithm", "num_envs", "n_steps", "batch_size", "processes"),
    [
        ("ryzen7", "ppo", 64, 256, 2048, 4),
        ("ryzen7", "impala", 48, 128, None, 4),
        ("ryzen7", "a2c", 64, 16, None, 4),
        ("highend", "ppo", 112, 256, 3584, 7),
        ("highend", "impala", 112, 128, None, 7),
        ("highend", "a2c", 112, 16, None, 7),
    ],
)
def test_a_machine_class_has_its_sizes(
    machine: str,
    algorithm: str,
    mode: str,
    num_envs: int,
    n_steps: int,
    batch_size: int | None,
    processes: int,
) -> None:
    config = read(f"{algorithm}_{mode}_{machine}")
    assert (config.algorithm, config.mode) == (algorithm, mode)
    assert (config.env.num_envs, config.training.n_steps) == (num_envs, n_steps)
    assert config.training.batch_size == batch_size
    assert config.num_processes == (processes if mode == "parallel" else 1)
    assert config.env.distribution_mode == "easy" and config.env.num_levels == 200


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("machine", [*MACHINES, "paper"])
def test_the_modes_of_a_machine_class_compute_the_same(algorithm: str, machine: str) -> None:
    """So that the mode changes how fast the numbers come, and nothing else."""
    if machine == "paper" and algorithm != "ppo":
        assert not list(FOLDER.glob(f"{algorithm}_*_paper.yaml"))  # the paper trains with PPO alone
        return
    one, many = (read(f"{algorithm}_{mode}_{machine}") for mode in ("sequential", "parallel"))
    assert one.group_size == many.group_size
    assert one.timesteps_per_update == many.timesteps_per_update
    left, right = flat_settings(one), flat_settings(many)
    different = {key for key in left if left[key] != right[key]}
    assert different <= {
        "mode", "parallel.num_workers", "hardware.num_threads", "impala.num_actors", "impala.num_learners",
    }  # fmt: skip


@pytest.mark.parametrize(("machine", "threads", "memory_gb"), [("ryzen7", 16, 16), ("highend", 28, 64)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_parallel_run_fits_its_machine(algorithm: str, machine: str, threads: int, memory_gb: int) -> None:
    config = read(f"{algorithm}_parallel_{machine}")
    cores = threads // 2
    assert config.num_processes * (config.hardware.num_threads or 1) <= cores
    rollouts = config.impala.max_policy_lag + 1 if algorithm == "impala" else 1
    processes = config.num_processes + (cores if algorithm == "impala" else 0)  # as many learners at the most
    used = processes * PROCESS_GB + rollouts * config.timesteps_per_update * FRAME_BYTES / 2**30
    assert used < memory_gb / 2


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_the_papers_files_have_the_papers_settings(mode: str) -> None:
    """Cobbe et al. 2020, and the code that made its figures."""
    config = read(f"ppo_{mode}_paper")
    training = config.training
    assert config.env.num_envs * training.n_steps == 64 * 256
    assert training.batch_size == 64 * 256 // 8
    published = {
        "n_epochs": 3, "learning_rate": 5e-4, "lr_schedule": "constant", "ent_coef": 0.01, "gamma": 0.999,
        "gae_lambda": 0.95, "clip_range": 0.2, "vf_coef": 0.5, "max_grad_norm": 0.5, "optimizer": "adam",
        "optimizer_eps": 1e-5, "clip_value_loss": True, "normalize_rewards": True, "reward_clip": 10,
        "normalize_advantages": True, "total_timesteps": 25_000_000,
    }  # fmt: skip
    assert {key: getattr(training, key) for key in published} == published
    assert (config.env.distribution_mode, config.env.num_levels, config.env.start_level) == ("easy", 200, 0)
    assert config.model.architecture == "impala"
    assert (config.model.impala_channels, config.model.hidden_size) == ((16, 32, 32), 256)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_what_is_not_a_matter_of_size_is_that_of_the_default_file(
    algorithm: str, machine: str, mode: str
) -> None:
    ours, default = (flat_settings(read(f"{algorithm}_{mode}{end}")) for end in (f"_{machine}", ""))
    sizes = {
        "env.num_envs", "env.group_size", "training.n_steps", "training.batch_size", "parallel.num_workers",
        "hardware.num_threads", "impala.num_actors",
    }  # fmt: skip
    assert {key for key in ours if ours[key] != default[key]} <= sizes


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_command_in_a_file_is_one_that_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    commands = [line.removeprefix("#").split() for line in text.splitlines() if "--config" in line]
    assert bool(commands) == path.stem.endswith((*MACHINES, "paper"))
    for _, script, flag, file, *_ in commands:
        assert (runs.PROJECT / script).exists()
        assert flag == "--config" and file == f"config/{path.name}"
        config = read(path.stem)
        assert f'"{config.algorithm}", "{config.mode}"' in (runs.PROJECT / script).read_text(encoding="utf-8")


def head_of(path: Path) -> str:
    """The comment that a file begins with, without its line breaks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.removeprefix("#").strip() for line in comment)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_says_in_its_head_where_its_values_come_from(path: Path) -> None:
    _, said, origin = head_of(path).partition("Where the values come from: ")
    assert said and origin
    for name in re.findall(r"(?<![\w/])(?:config|docs|src)/[\w./]+", origin):
        assert (runs.PROJECT / name.rstrip(".")).exists(), name


def test_what_heads_say_of_the_default_files_of_ppo_is_so() -> None:
    for stem, parts in (("ppo_sequential", 4), ("ppo_parallel", 2), ("ppo_cpu_cluster", 2)):
        config = read(stem)
        assert config.timesteps_per_update == parts * (config.training.batch_size or 0)
        words = {4: "minibatches of a quarter of the rollout", 2: "minibatches of half the rollout"}[parts]
        assert words in head_of(FOLDER / f"{stem}.yaml")
    assert read("ppo_cpu_cluster").timesteps_per_update == 64 * 256
    paper = flat_settings(read("ppo_sequential_paper"))
    for stem in ("ppo_sequential", "ppo_parallel", "ppo_cpu_cluster", "ppo_sequential_highend"):
        ours = flat_settings(read(stem))
        same = ("learning_rate", "gamma", "gae_lambda", "clip_range", "vf_coef", "ent_coef", "max_grad_norm")
        assert all(ours[f"training.{key}"] == paper[f"training.{key}"] for key in same)
        assert (ours["training.n_epochs"], ours["training.clip_value_loss"]) == (4, False)


# --- That they train ---


def smaller(config: Config) -> list[Any]:
    """Flags that cut what would take minutes: see the head of this file."""
    training = config.training
    flags = ["--n-steps", N_STEPS, "--total-timesteps", UPDATES * N_STEPS * config.env.num_envs]
    if training.batch_size is not None:
        flags += ["--batch-size", training.batch_size * N_STEPS // training.n_steps]
    for setting in ("model.architecture=nature", "model.hidden_size=16", "logging.tensorboard=false"):
        flags += ["--set", setting]
    return flags


def check(folder: Path, config: Config) -> None:
    """The run was completed, and was that of the file but for what was cut."""
    record = runs.record(folder)
    assert record["status"] == "completed"
    assert record["total_updates"] == UPDATES
    assert record["total_timesteps"] == UPDATES * N_STEPS * config.env.num_envs
    assert len(runs.rows(folder)) == UPDATES
    trained, wanted = (flat_settings(each) for each in (Config.model_validate(record["config"]), config))
    different = {key for key in wanted if trained[key] != wanted[key]}
    assert different <= {
        "training.n_steps", "training.batch_size", "training.total_timesteps", "training.duration_hours",
        "model.architecture", "model.hidden_size", "logging.tensorboard", "hardware.num_threads",
        "impala.num_learners",
    }  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "stem",
    [
        *(f"{algorithm}_sequential_{machine}" for algorithm in ALGORITHMS for machine in MACHINES),
        "ppo_sequential_paper",
    ],
)
def test_a_sequential_file_trains(tmp_path: Path, stem: str) -> None:
    config = read(stem)
    flags = ["--config", FOLDER / f"{stem}.yaml", "--output-dir", tmp_path / "run", "--num-threads", 1]
    arguments = [*map(str, [*flags, *smaller(config)])]
    assert main(config.algorithm, "sequential", False, arguments) == 0
    check(tmp_path / "run", config)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stem", ["a2c_parallel_highend", "impala_parallel_ryzen7", "ppo_parallel_paper"])
def test_a_parallel_file_trains(tmp_path: Path, stem: str) -> None:
    config = read(stem)
    result = runs.run(
        f"train.py --algorithm {config.algorithm} --mode parallel", "--config", FOLDER / f"{stem}.yaml",
        *smaller(config),
        "--output-dir", tmp_path / "run", "--num-threads", 1,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    check(tmp_path / "run", config)
    assert f"for each of {config.num_processes} " in result.stdout
