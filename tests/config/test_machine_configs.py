"""The overlays for machine classes and for the Procgen paper: what they change, and that they train.

Every combination of a default file and an overlay is read and validated. A whole update takes minutes on two
cores for some of them, so the training tests change two things: rollouts are shorter, with minibatches cut in
proportion, and the network is a small Nature CNN. All sequential combinations train, and three parallel
ones: one with the most workers, one with actors, and the paper's.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlcb.cli.train import main
from rlcb.config.config import Config, flat_settings
from rlcb.config.yaml_file import build_config, read_config_file, read_config_files
from rlcb.errors import UsageError
from tests import runs

FOLDER = runs.PROJECT / "config"
MACHINES = ("ryzen7", "highend")
ALGORITHMS = ("ppo", "impala", "a2c")
N_STEPS, UPDATES = 4, 2
PROCESS_GB = 0.35  # Procgen's pictures, torch and the interpreter
FRAME_BYTES = 64 * 64 * 3


CONFIG_FILES = sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("machine/*.yaml")])
OVERLAYS = {name: FOLDER / "machine" / f"{name}.yaml" for name in MACHINES} | {"paper": FOLDER / "paper.yaml"}


def files_of(name: str) -> list[Path]:
    """Return the files of `ppo_parallel`, or with an overlay of `ppo_parallel_ryzen7`."""
    base, _, overlay = name.rpartition("_")
    if overlay in OVERLAYS:
        return [FOLDER / f"{base}.yaml", OVERLAYS[overlay]]
    return [FOLDER / f"{name}.yaml"]


def read(name: str) -> Config:
    algorithm, _, mode = name.partition("_")
    mode = mode.partition("_")[0].replace("cpu", "distributed")
    return build_config(read_config_files(files_of(name), algorithm, mode), name)


def flags_of(name: str) -> list[Any]:
    return [word for path in files_of(name) for word in ("--config", path)]


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
        with pytest.raises(
            UsageError, match=rf"paper\.yaml: has nothing for {algorithm} parallel; it is for ppo"
        ):
            read(f"{algorithm}_parallel_paper")  # the paper trains PPO only
        return
    one, many = (read(f"{algorithm}_{mode}_{machine}") for mode in ("sequential", "parallel"))
    assert one.group_size == many.group_size
    assert one.timesteps_per_update == many.timesteps_per_update
    left, right = flat_settings(one), flat_settings(many)
    different = {key for key in left if left[key] != right[key]}
    assert different <= {
        "mode", "parallel.num_workers", "hardware.num_threads", "impala.num_actors", "impala.num_learners",
    }  # fmt: skip


def test_the_tuned_overlay_is_for_the_two_algorithms_whose_settings_it_has() -> None:
    overlay = FOLDER / "tuned" / "nature_short_runs.yaml"
    settings = yaml.safe_load(overlay.read_text(encoding="utf-8"))["when"]
    assert sorted(settings) == ["a3c", "ppo"]
    for algorithm, wanted in settings.items():
        files = [FOLDER / f"{algorithm}_parallel.yaml", overlay]
        config = build_config(read_config_files(files, algorithm, "parallel"), algorithm)
        assert config.model.architecture == "nature"
        assert {key: getattr(config.training, key) for key in wanted["training"]} == wanted["training"]
    for algorithm in ("a2c", "impala"):
        with pytest.raises(UsageError, match=f"has nothing for {algorithm} parallel; it is for"):
            read_config_files([FOLDER / f"{algorithm}_parallel.yaml", overlay], algorithm, "parallel")


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
        "env.num_envs", "training.n_steps", "training.batch_size", "parallel.num_workers",
        "hardware.num_threads", "impala.num_actors",
    }  # fmt: skip
    assert {key for key in ours if ours[key] != default[key]} <= sizes


@pytest.mark.parametrize("path", CONFIG_FILES, ids=lambda path: path.stem)
def test_the_command_in_a_file_is_one_that_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    commands = [line.removeprefix("#").split() for line in text.splitlines() if "--config" in line]
    assert bool(commands) == (path in OVERLAYS.values())
    for _, script, flag, base, again, overlay, *_ in commands:
        assert (runs.PROJECT / script).exists()
        assert (flag, again) == ("--config", "--config")
        assert runs.PROJECT / overlay == path
        config = build_config(read_config_file(runs.PROJECT / base), base)
        assert f'"{config.algorithm}", "{config.mode}"' in (runs.PROJECT / script).read_text(encoding="utf-8")


def head_of(path: Path) -> str:
    """The comment that a file begins with, without its line breaks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.removeprefix("#").strip() for line in comment)


@pytest.mark.parametrize("path", CONFIG_FILES, ids=lambda path: path.stem)
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


DIFFERENCES: dict[str, dict[str, object]] = {
    "a2c_parallel_highend": {"env.num_envs": 112, "parallel.num_workers": 7, "hardware.num_threads": 2},
    "a2c_parallel_ryzen7": {"env.num_envs": 64, "parallel.num_workers": 4, "hardware.num_threads": 2},
    "a2c_sequential_highend": {"env.num_envs": 112},
    "a2c_sequential_ryzen7": {"env.num_envs": 64},
    "impala_parallel_highend": {"env.num_envs": 112, "training.n_steps": 128, "impala.num_actors": 7},
    "impala_parallel_ryzen7": {"env.num_envs": 48, "training.n_steps": 128, "impala.num_actors": 4},
    "impala_sequential_highend": {"env.num_envs": 112, "training.n_steps": 128},
    "impala_sequential_ryzen7": {"env.num_envs": 48, "training.n_steps": 128},
    "ppo_parallel_highend": {
        "env.num_envs": 112, "training.n_steps": 256, "training.batch_size": 3584, "parallel.num_workers": 7,
        "hardware.num_threads": 2,
    },
    "ppo_parallel_ryzen7": {
        "env.num_envs": 64, "training.n_steps": 256, "parallel.num_workers": 4, "hardware.num_threads": 2,
    },
    "ppo_parallel_paper": {
        "env.num_envs": 64, "model.architecture": "impala", "training.n_steps": 256, "training.n_epochs": 3,
        "training.clip_value_loss": True,
    },
    "ppo_sequential_highend": {
        "env.num_envs": 112, "training.n_steps": 256, "training.batch_size": 3584,
    },
    "ppo_sequential_ryzen7": {"env.num_envs": 64, "training.n_steps": 256, "training.batch_size": 2048},
    "ppo_sequential_paper": {
        "env.num_envs": 64, "model.architecture": "impala", "training.n_steps": 256,
        "training.batch_size": 2048, "training.n_epochs": 3, "training.clip_value_loss": True,
    },
}  # fmt: skip
"""What the full files that the overlays replaced had differently from the default files, on two cores."""


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_default_file_with_an_overlay_equals_the_full_file_of_before(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcb.config.config.usable_cores", lambda: 2)
    base, settings = (flat_settings(read(each)) for each in (name.rpartition("_")[0], name))
    assert {key: value for key, value in settings.items() if base[key] != value} == DIFFERENCES[name]
    algorithm, mode, overlay = name.split("_")
    alone = build_config(read_config_files([OVERLAYS[overlay]], algorithm, mode), name)
    assert flat_settings(alone) == settings, "the default file comes before an overlay that is alone"


def write(folder: Path, **files: str) -> list[Path]:
    paths = [folder / f"{name}.yaml" for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def test_later_files_override_single_settings_of_earlier_ones(tmp_path: Path) -> None:
    paths = write(
        tmp_path,
        a="env: {id: maze, kwargs: {x: 1}}\ntraining: {seed: 1, gamma: 0.9}\n",
        b="env: {kwargs: {y: 2}}\ntraining: {seed: 2}\nlogging:\n",
        c="when: {parallel: {training: {seed: 3}}, ppo: {training: {seed: 4}}, ppo_parallel: {}}\n",
    )
    merged = read_config_files(paths, "ppo", "parallel")
    assert merged["env"] == {"id": "maze", "kwargs": {"x": 1, "y": 2}}
    assert merged["training"] == {"seed": 3, "gamma": 0.9}, "a mode goes over an algorithm"
    assert read_config_files(paths[:2], "ppo", "parallel")["training"]["seed"] == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training: 3\n", r"b\.yaml line 1: training = 3: expected a section"),
        ("when: {dqn: {}}\n", r"b\.yaml line 1: when\.dqn: expected one of ppo, "),
        ("when: [ppo]\n", r"b\.yaml line 1: when: expected sections"),
        (
            "when: {impala: {env: {num_envs: 8}}}\n",
            r"b\.yaml: has nothing for ppo parallel; it is for impala",
        ),
        ("training: [\n", r"b\.yaml line \d: not valid YAML"),
    ],
)
def test_an_error_in_one_of_several_files_names_it(tmp_path: Path, text: str, words: str) -> None:
    paths = write(tmp_path, a="training: {seed: 1}\n", b=text)
    with pytest.raises(UsageError, match=words):
        read_config_files(paths, "ppo", "parallel")


# --- That they train ---


def smaller(config: Config) -> list[Any]:
    """Flags that cut what would take minutes: see the head of this file."""
    training = config.training
    flags = ["--n-steps", N_STEPS, "--total-timesteps", UPDATES * N_STEPS * config.env.num_envs]
    if training.batch_size is not None:
        flags += ["--batch-size", training.batch_size * N_STEPS // training.n_steps]
    for setting in ("model.architecture=nature", "model.hidden_size=16", "logging.tensorboard=false"):
        flags += ["--set", setting]
    if config.has_actors and config.mode == "parallel":
        flags += ["--set", "impala.num_learners=1"]  # or it would be measured
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
    flags = [*flags_of(stem), "--output-dir", tmp_path / "run", "--num-threads", 1]
    arguments = [*map(str, [*flags, *smaller(config)])]
    assert main(config.algorithm, "sequential", False, arguments) == 0
    check(tmp_path / "run", config)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stem", ["a2c_parallel_highend", "impala_parallel_ryzen7", "ppo_parallel_paper"])
def test_a_parallel_file_trains(tmp_path: Path, stem: str) -> None:
    config = read(stem)
    result = runs.call(
        f"train.py --algorithm {config.algorithm} --mode parallel", *flags_of(stem), *smaller(config),
        "--output-dir", tmp_path / "run", "--num-threads", 1,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    check(tmp_path / "run", config)
    assert f"for each of {config.num_processes} " in result.stdout
