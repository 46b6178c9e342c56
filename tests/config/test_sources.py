"""An error names where the value comes from: the flag, `--set KEY`, or the file and line that contain it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlcb.cli import benchmark, train, tune
from rlcb.config.yaml_file import build_config, read_config_file, read_config_files
from rlcb.errors import UsageError
from rlcb.paths import default_config_path

DEFAULT_FILE = "config/ppo_sequential.yaml"


def line_of(path: Path, start: str) -> int:
    """The line, from 1, that begins with `start` after its indentation."""
    lines = path.read_text(encoding="utf-8").splitlines()
    (found,) = (number for number, line in enumerate(lines, 1) if line.strip().startswith(start))
    return found


def default_line(key: str) -> str:
    """Where the default file of sequential PPO has a key, as messages say it."""
    return f"{DEFAULT_FILE} line {line_of(default_config_path('ppo', 'sequential'), f'{key}:')}"


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call a command in vain; return its message without the program's name."""

    def call(*words: object, main: Callable[..., int] = train.main, mode: str = "sequential") -> str:
        flags = ["--mode", mode] if main is train.main else []
        output = ["--output-dir", str(tmp_path / "out")] if "--output-dir" not in words else []
        assert main(argv=[*flags, *map(str, words), *output]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line.partition(": error: ")[2]

    return call


Refused = Callable[..., str]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- One value ---


def test_a_flag_and_a_set_are_named_and_no_file_is_blamed(refused: Refused) -> None:
    assert refused("--gamma", 2).startswith("--gamma: training.gamma = 2.0: ")
    assert refused("--set", "training.clip_range=-1").startswith("--set training.clip_range: training.clip_r")
    message = refused("--gamma", 2, "--set", "training.gama=1")
    assert "--gamma: training.gamma = 2.0" in message
    assert "--set training.gama: training.gama = 1: unknown key" in message
    assert ".yaml" not in message


def test_a_value_of_a_file_is_named_with_its_line(refused: Refused, tmp_path: Path) -> None:
    path = write(tmp_path, "my.yaml", "env:\n  num_envs: 8\ntraining:\n  n_steps: 8\n\n  gamma: 2\n")
    assert refused("--config", path).startswith(f"{path} line 6: training.gamma = 2: ")
    assert refused("--config", path, "--gamma", "0.9", "--set", "env.procgen={centre: 1}").startswith(
        "--set env.procgen: env.procgen.centre = 1: unknown key"
    )


def test_of_several_files_the_one_that_has_the_value_is_named(refused: Refused, tmp_path: Path) -> None:
    first = write(tmp_path, "first.yaml", "training:\n  n_steps: 8\n  gamma: 3\n  clip_range: -1\n")
    second = write(tmp_path, "second.yaml", "training:\n  batch_size: 32\n  gamma: 2\n")
    message = refused("--config", first, "--config", second)
    assert f"{second} line 3: training.gamma = 2" in message
    assert f"{first} line 4: training.clip_range = -1" in message
    assert "gamma = 3" not in message


def test_a_value_below_when_is_named_with_the_line_of_the_overlay(refused: Refused, tmp_path: Path) -> None:
    text = "training:\n  n_steps: 64\nwhen:\n  ppo:\n    training:\n      gamma: 2\n"
    overlay = write(tmp_path, "overlay.yaml", text)
    assert refused("--config", overlay).startswith(f"{overlay} line 6: training.gamma = 2: ")
    write(tmp_path, "overlay.yaml", text.replace("n_steps", "n_stepps"))
    settings = read_config_files([overlay], "a2c", "sequential")
    with pytest.raises(UsageError, match=r"overlay\.yaml line 2: training\.n_stepps"):
        build_config(settings)


def test_a_setting_in_its_old_place_keeps_its_line(refused: Refused, tmp_path: Path) -> None:
    path = write(tmp_path, "old.yaml", "training:\n  num_envs: 0\n")
    assert refused("--config", path).startswith(f"{path} line 2: env.num_envs = 0: ")
    twice = write(tmp_path, "twice.yaml", "training:\n  num_envs: 4\nenv:\n  num_envs: 8\n")
    message = refused("--config", twice)
    assert message.startswith(
        f"{twice} line 2: training.num_envs = 4 contradicts env.num_envs = 8 ({twice} line 4)"
    )


def test_merged_and_repeated_mappings_have_the_lines_of_their_keys(tmp_path: Path) -> None:
    text = "training: &t\n  gamma: 0.9\n  n_steps: 8\nother:\n  <<: *t\n  gamma: 0.5\nlast: *t\n"
    sources = read_config_file(write(tmp_path, "merged.yaml", text)).sources
    lines = {key: int(place.rpartition(" ")[2]) for key, place in sources.items()}
    assert lines["other.gamma"] == 6
    assert lines["other.n_steps"] == 3
    assert lines["last"] == 7


@pytest.mark.parametrize("text", ["a: &a\n  b: *a\n", "a: &a\n  <<: [*a]\n"])
def test_a_mapping_that_contains_itself_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, RecursionError)):
        build_config(read_config_file(write(tmp_path, "circle.yaml", text)))


def test_an_element_of_a_list_has_the_line_of_the_list(refused: Refused, tmp_path: Path) -> None:
    path = write(tmp_path, "list.yaml", "model:\n  impala_channels:\n    - 16\n    - x\n")
    assert refused("--config", path).startswith(f"{path} line 2: model.impala_channels.1 = 'x'")


def test_a_file_of_another_algorithm_is_named_with_the_line(refused: Refused, tmp_path: Path) -> None:
    path = write(tmp_path, "a2c.yaml", "# mine\nalgorithm: a2c\n")
    assert refused("--config", path).startswith(
        f"{path} line 2: algorithm = 'a2c', but this command runs ppo"
    )


# --- Several values ---


def test_each_value_of_a_contradiction_is_named_with_its_source(refused: Refused) -> None:
    message = refused("--num-envs", 4, "--set", "training.n_steps=8")
    assert message.startswith("training.batch_size = 1024 must be at most the rollout")
    file, flags = (
        default_line("batch_size"),
        "training.n_steps from --set training.n_steps, env.num_envs from",
    )
    assert message.endswith(f"(training.batch_size from {file}, {flags} --num-envs)")


def test_a_default_is_called_a_default(refused: Refused, tmp_path: Path) -> None:
    path = write(tmp_path, "small.yaml", "env:\n  group_size: 7\n")
    message = refused("--config", path)
    assert message.startswith("env.group_size = 7 must divide env.num_envs = 32 (")
    assert f"env.group_size from {path} line 2, env.num_envs from its default" in message


def test_workers_of_a_file_are_named_in_a_contradiction_of_flags(refused: Refused, tmp_path: Path) -> None:
    path = write(tmp_path, "workers.yaml", "parallel:\n  num_workers: 4\n")
    message = refused("--config", path, "--num-envs-per-worker", 8, "--num-envs", 16, mode="parallel")
    expected = f"--num-envs-per-worker 8 x 4 workers ({path} line 2) contradicts --num-envs 16"
    assert message == expected


# --- Studies and tunings ---


def test_errors_of_a_study_name_the_flag_or_the_line(refused: Refused, tmp_path: Path) -> None:
    study = write(
        tmp_path,
        "study.yaml",
        "algorithms: [ppo]\nenvs: [CartPole-v1]\nseeds: [1]\nset:\n  training.gamma: 2\n",
    )
    call = {"main": benchmark.main}
    assert refused("--study", study, **call).startswith(
        f"ppo sequential: {study} line 5: training.gamma = 2: input should be"
    )
    message = refused("--study", study, "--set", "ppo:training.gamma=3", **call)
    assert message.startswith("ppo sequential: --set ppo:training.gamma: training.gamma = 3: ")
    wrong = {
        "seeds: [1]": ("seeds: [-1]", f"{study} line 3: seeds.0 = -1: "),
        "[CartPole-v1]": ("[CartPol-v1]", f"{study} line 2: envs CartPol-v1: "),
        "training.gamma: 2": ("training.seed: 2", f"{study} line 5: set training.seed: the study sets"),
        "  training.gamma": ("  impala:training.gamma", f"{study} line 5: set impala:training.gamma: no run"),
        "algorithms": ("algorithm", f"{study} line 1: unknown key 'algorithm'"),
    }
    text = study.read_text()
    for before, (after, expected) in wrong.items():
        study.write_text(text.replace(before, after))
        assert refused("--study", study, **call).startswith(expected)
    study.write_text(text)
    assert refused("--study", study, "--seeds", -1, **call).startswith("--seeds: seeds.0 = -1: ")
    assert refused("--study", study, "--duration", "0s", **call).startswith("--duration: duration = 0.0: ")


def test_a_planned_study_names_its_flags(refused: Refused) -> None:
    message = refused("--hours", "1h", "--set", "model.architecture=vit", main=benchmark.main)
    assert "--set model.architecture: model.architecture = 'vit'" in message


def test_a_file_of_a_study_is_named_with_its_line(refused: Refused, tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", "logging:\n  log_dir: logs\n")
    words = ("--algorithms", "ppo", "--modes", "sequential", "--config", f"ppo={path}")
    message = refused(*words, main=benchmark.main)
    assert message.startswith(f"{path} line 2: all runs would share logging.log_dir")


def test_errors_of_a_tuning_name_the_flag(refused: Refused) -> None:
    words = ("--algorithms", "ppo", "--envs", "CartPole-v1", "--dry-run")
    call = {"main": tune.main}
    assert refused(*words, "--trials", 0, **call).startswith("--trials: trials = 0: ")
    message = refused(*words, "--set", "training.gamma=2", **call)
    assert message.startswith("ppo parallel: --set training.gamma: training.gamma = 2: ")
    assert refused(*words, "--num-envs", 0, **call).startswith("--num-envs: num_envs = 0: ")
    message = refused(*words, "--set", "training.seed=2", **call)
    assert message.startswith("--set training.seed: the tuning sets")


# --- Runs that resume ---


def test_the_configuration_of_a_run_is_named_with_its_line(refused: Refused, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    path = write(run, "config.yaml", "algorithm: ppo\nmode: sequential\ntraining:\n  gamma: 2\n")
    message = refused("--resume", "--output-dir", run)
    assert message.startswith(f"{path} line 4: training.gamma = 2: ")
    path.write_text("algorithm: ppo\nmode: sequential\nenv: {num_envs: 4}\ntraining: {batch_size: 32}\n")
    message = refused("--resume", "--output-dir", run, "--batch-size", 1024)
    assert "training.batch_size from --batch-size" in message
    assert f"env.num_envs from {path}" in message
