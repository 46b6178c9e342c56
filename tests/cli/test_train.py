"""The command line: every flag reaches its setting, and every wrong input is one line and code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcb.cli.flags import FLAGS, Flag, apply_actors, make_parser
from rlcb.cli.train import main, resolve_config, resolve_resumed
from rlcb.config.config import Config, flat_settings
from rlcb.config.games import GAMES
from rlcb.config.sourced import SourcedSettings
from rlcb.config.yaml_file import dump_config
from rlcb.errors import UsageError
from rlcb.paths import default_config_path
from tests import fault_env

SCRIPTS = [
    ("ppo", "sequential"),
    ("ppo", "parallel"),
    ("a2c", "sequential"),
    ("a2c", "parallel"),
    ("a3c", "parallel"),
    ("impala", "sequential"),
    ("impala", "parallel"),
]


def resolve(*flags: str, algorithm: str = "ppo", mode: str = "sequential", timed: bool = False) -> Config:
    return resolve_config(make_parser(algorithm, mode, timed).parse_args(flags))


VALUES = {
    "--duration": ("0.5", 0.5),
    "--total-timesteps": ("1e6", 1_000_000),
    "--env": ("starpilot", "procgen-starpilot-v0"),
    "--num-envs": ("16", 16),
    "--num-threads": ("3", 3),
    "--n-steps": ("256", 256),
    "--batch-size": ("512", 512),
    "--n-epochs": ("2", 2),
    "--learning-rate": ("1e-4", 1e-4),
    "--gamma": ("0.9", 0.9),
    "--seed": ("7", 7),
    "--distribution-mode": ("hard", "hard"),
    "--num-levels": ("0", 0),
    "--start-level": ("100", 100),
    "--checkpoint-dir": ("a", "a"),
    "--log-dir": ("b", "b"),
    "--track": ("trackio", "trackio"),
    "--device": ("cpu", "cpu"),
}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_reaches_its_setting(flag: Flag) -> None:
    text, value = VALUES[flag.name]
    assert flat_settings(resolve(flag.name, text))[flag.key] == value


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (("--duration", "1h30m"), "training.duration_hours", 1.5),
        (("--duration=90s",), "training.duration_hours", 0.025),
        (("--set", "training.duration_hours=30m"), "training.duration_hours", 0.5),
        (("--total-timesteps", "1M"), "training.total_timesteps", 1_000_000),
        (("--set", "training.total_timesteps=250k"), "training.total_timesteps", 250_000),
    ],
)
def test_times_and_counts_may_be_words(flags: tuple[str, ...], key: str, value: float) -> None:
    assert flat_settings(resolve(*flags, timed="duration" in key))[key] == value


@pytest.mark.parametrize(("algorithm", "mode"), SCRIPTS)
@pytest.mark.parametrize("timed", [True, False])
def test_every_script_has_the_same_flags_and_finds_its_own_configuration(
    algorithm: str, mode: str, timed: bool
) -> None:
    help_text = make_parser(algorithm, mode, timed).format_help()
    for flag in FLAGS:
        assert flag.name in help_text
    for name in ("--config", "--output-dir", "--resume", "--overwrite", "--set"):
        assert name in help_text
    assert ("--num-workers" in help_text) == (mode == "parallel" and algorithm != "impala")
    assert ("--num-actors" in help_text) == (mode == "parallel" and algorithm == "impala")
    config = resolve(algorithm=algorithm, mode=mode, timed=timed)
    assert (config.algorithm, config.mode) == (algorithm, mode)
    budget = (config.training.total_timesteps, config.training.duration_hours)
    assert budget == ((None, 1.0) if timed else (25_000_000, None))


def test_help_shows_what_the_configuration_says() -> None:
    help_text = " ".join(make_parser("impala", "parallel", timed=True).format_help().split())
    assert "for a wall-clock time (--duration)" in help_text
    assert "wall clock to train for: 30m, 1h30m, 90s, or a number of hours (1)" in help_text
    assert (
        "steps of all environments to train for: 1M, 250k, 1e6 --env" in help_text
    )  # not what ends this script
    assert "steps of each environment in a rollout (16)" in help_text
    assert "samples in a minibatch --n-epochs" in help_text  # null
    assert "learning rate at the start (0.001)" in help_text


def test_the_defaults_are_those_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcb.config.config.usable_cores", lambda: 6)
    config = resolve()
    training = config.training
    assert (config.env.num_envs, training.n_steps, training.batch_size, training.n_epochs) == (
        32,
        128,
        1024,
        4,
    )
    assert (config.env.distribution_mode, config.env.num_levels) == ("easy", 200)
    parallel = resolve(mode="parallel")
    assert (parallel.num_processes, parallel.envs_per_process, parallel.training.batch_size) == (4, 8, 2048)


def test_workers_and_their_environments() -> None:
    config = resolve("--num-workers", "2", "--num-envs-per-worker", "24", mode="parallel")
    assert (config.num_processes, config.env.num_envs, config.envs_per_process) == (2, 48, 24)
    config = resolve("--num-workers", "2", "--num-envs", "64", mode="parallel")
    assert config.envs_per_process == 32
    assert resolve("--num-envs-per-worker", "8", "--batch-size", "64").env.num_envs == 8


def test_actors_and_their_environments() -> None:
    def split(*flags: str) -> tuple[int | None, int, int]:
        config = resolve(*flags, algorithm="impala", mode="parallel")
        return config.impala.num_actors, config.env.num_envs, config.envs_per_process

    assert split("--num-envs", "32", "--num-envs-per-actor", "8") == (4, 32, 8)
    assert split("--num-envs-per-actor", "8") == (4, 32, 8)  # of the 32 of the file
    assert split("--num-envs-per-actor", "16", "--set", "env.num_envs=48") == (3, 48, 16)
    assert split("--num-actors", "3", "--num-envs-per-actor", "8") == (3, 24, 8)
    assert split("--set", "impala.num_actors=2", "--num-envs-per-actor", "8") == (2, 16, 8)
    assert split("--num-actors", "4", "--num-envs", "24") == (4, 24, 6)
    assert split()[0] is None  # for the calibration to say


def test_actors_of_several_nodes_share_the_environments_of_all() -> None:
    flags = make_parser("impala", "parallel", timed=False).parse_args(["--num-envs-per-actor", "8"])
    data = SourcedSettings({"env": {"num_envs": 64}})
    apply_actors(data, flags, num_nodes=2)
    assert data == {"env": {"num_envs": 64}, "impala": {"num_actors": 4}}
    with pytest.raises(UsageError, match=r"8 x 3 nodes: env\.num_envs = 64 is no multiple of it"):
        apply_actors(SourcedSettings({"env": {"num_envs": 64}}), flags, num_nodes=3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1_000_000", 1_000_000),
        ("2.5e3", 2500),
        ("9007199254740993", 2**53 + 1),  # which no float is
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_whole_numbers_are_read_exactly(text: str, value: int) -> None:
    assert resolve("--seed", text).training.seed == value


def test_set_reads_yaml_and_goes_over_flags() -> None:
    config = resolve(
        "--gamma", "0.5", "--set", "training.gamma=0.75", "--set", "model.impala_channels=[8, 16]"
    )
    assert config.training.gamma == 0.75
    assert config.model.impala_channels == (8, 16)
    assert resolve("--set", "training.num_envs=8", "--batch-size", "64").env.num_envs == 8  # an old home


WRONG = {
    "unknown environment": (("--env", "pacman"), "'pacman'"),
    "negative duration": (("--duration", "-1"), "training.duration_hours = -1.0"),
    "no timesteps": (("--total-timesteps", "0"), "training.total_timesteps = 0"),
    "half a step": (("--n-steps", "1.5"), "--n-steps"),
    "batch larger than the rollout": (("--batch-size", "5000"), "training.batch_size = 5000 must be at most"),
    "unknown setting": (("--set", "training.gama=1"), "training.gama"),
    "wrong type": (("--set", "training.gamma=high"), "training.gamma = 'high'"),
    "no value": (("--set", "training.gamma"), "expected section.key=value"),
    "unknown flag": (("--gpu", "1"), "--gpu"),
    "no gpu": (("--device", "cuda"), "hardware.device = 'cuda'"),
    "workers of one process": (("--num-workers", "2"), "trains in one process"),
    "actors of one process": (("--num-actors", "2"), "only IMPALA has actors"),
    "two numbers of environments": (
        ("--num-envs", "8", "--num-envs-per-worker", "4"),
        "--num-envs-per-worker 4 x 1 workers contradicts --num-envs 8",
    ),
    "missing file": (("--config", "nowhere.yaml"), "nowhere.yaml"),
    "resume without a folder": (("--resume",), "--resume needs --output-dir"),
    "mode that the game lacks": (("--env", "starpilot", "--distribution-mode", "memory"), "memory"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_code_2_and_leaves_nothing(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags, words = WRONG[case]
    assert main("ppo", "sequential", False, flags) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    if case == "unknown environment":
        assert all(game in captured.err for game in GAMES)


PER_ACTOR = "--num-envs-per-actor"
WRONG_ACTORS = {
    "no whole number of them": (
        ("impala", "parallel", PER_ACTOR, "12"),
        "--num-envs-per-actor 12: env.num_envs = 32 (config/impala_parallel.yaml line ",
    ),
    "more than there are": (("impala", "parallel", PER_ACTOR, "64"), ") is no multiple of it; give another"),
    "none": (("impala", "parallel", PER_ACTOR, "0"), "--num-envs-per-actor 0"),
    "words": (("impala", "parallel", "--set", "env.num_envs=many", PER_ACTOR, "8"), "env.num_envs = many"),
    "three numbers": (
        ("impala", "parallel", "--num-actors", "2", PER_ACTOR, "8", "--num-envs", "32"),
        "--num-envs-per-actor 8 x 2 actors contradicts --num-envs 32",
    ),
    "IMPALA in one process": (
        ("impala", "sequential", "--num-actors", "4"),
        "--num-actors 4: a sequential run has no actors; --mode parallel has",
    ),
    "its settings in one process": (
        ("impala", "sequential", "--set", "impala.max_policy_lag=4"),
        "impala.max_policy_lag = 4: a sequential run has no actors",
    ),
    "another algorithm": (
        ("a2c", "parallel", "--num-actors", "4"),
        "only IMPALA has actors; use --num-workers",
    ),
    "another algorithm in one process": (
        ("a2c", "sequential", "--num-actors", "4"),
        "only IMPALA has actors, and this script trains in one process",
    ),
}


@pytest.mark.parametrize(("words", "expected"), WRONG_ACTORS.values(), ids=WRONG_ACTORS)
def test_actors_that_cannot_be_are_refused(
    words: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    algorithm, mode, *flags = words
    assert main(algorithm, mode, False, [*flags, "--output-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_file_that_leaves_actors_and_learners_open_goes_on_with_those_of_the_run(tmp_path: Path) -> None:
    """Which a calibration had found."""
    found = ("--set", "impala.num_actors=4", "--set", "impala.num_learners=3")
    before = resolve(*found, algorithm="impala", mode="parallel")
    (tmp_path / "config.yaml").write_text(dump_config(before), encoding="utf-8")
    file = str(default_config_path("impala", "parallel"))
    flags = ["--resume", "--output-dir", str(tmp_path), "--config", file]

    def resumed(*more: str) -> Config:
        arguments = make_parser("impala", "parallel", timed=False).parse_args([*flags, *more])
        return resolve_resumed(arguments)[0]

    assert resumed() == before
    assert resumed("--total-timesteps", "10").impala == before.impala
    with pytest.raises(UsageError, match=r"impala\.num_learners = 3 in the run, 2 now"):
        resumed("--set", "impala.num_learners=2")


def test_environments_must_divide_among_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("ppo", "parallel", False, ["--num-workers", "3"]) == 2
    assert "env.num_envs = 32 must be a multiple of parallel.num_workers = 3" in capsys.readouterr().err


def test_a_configuration_of_another_script_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(default_config_path("a2c", "sequential"))
    assert main("ppo", "sequential", False, ["--config", path]) == 2
    assert "algorithm = 'a2c', but this command runs ppo sequential" in capsys.readouterr().err


def test_an_environment_that_cannot_be_made_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env", fault_env.ID, "--set", "env.kwargs.fault=make", "--output-dir", str(tmp_path / "run")]
    assert main("ppo", "sequential", False, flags) == 2
    error = capsys.readouterr().err
    assert "no such world" in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()
