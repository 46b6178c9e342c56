"""profile_cpu.py as a user runs it, on a small image environment: measured, written, used, traced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlcb import cpu
from rlcb.cli.profile import main, make_parser
from rlcb.cli.train import main as train
from rlcb.config.games import GAMES
from rlcb.config.yaml_file import build_config, read_config_file
from rlcb.machine.profile import FOLDER_VARIABLE, read_profile
from rlcb.profiling.request import configurations, environments, selected_pairs
from tests import image_env, runs

NETWORK = ("--set", "model.impala_channels=[4]", "--set", "model.hidden_size=8")
SMALL = (*NETWORK, "--set", "env.num_envs=8", "--set", "logging.tensorboard=false", "--env", image_env.ID)
LOCK = "RL_BENCHMARK_LOCK"


def profile_cpu(folder: Path, *flags: object, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, FOLDER_VARIABLE: str(folder / "profiles"), LOCK: str(folder / "lock")}
    return runs.run("profile_cpu.py", *SMALL, *flags, timeout=timeout, env=environment)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a profile, and what was printed."""
    folder = tmp_path_factory.mktemp("measured")
    result = profile_cpu(folder, "--quick", "--algorithms", "a2c", "--modes", "sequential")
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


@pytest.fixture
def here(measured: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of that profile, for this process."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(measured[0] / "profiles"))
    return measured[0] / "profiles"


def test_a_profile_has_all_measurements_and_files(measured: tuple[Path, str]) -> None:
    folder, text = measured
    (path,) = (folder / "profiles").glob("*.json")
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    profile = read_profile(path)
    cores = cpu.usable_cores()
    assert profile.cores == cores
    assert {each.threads for each in profile.forward} >= {1, cores}
    assert {each.size for each in profile.forward_backward} == {64, 128}
    assert {each.layout for each in profile.forward} == {"channels_last", "torch"}
    assert {each.threads for each in profile.environments} >= {1, cores}
    assert profile.network.observation_shape == (16, 16, 3)
    # The first convolution, 4 filters of 3 x 3 x 3 on 16 x 16 places; backwards no gradient of the image.
    first = 2 * 4 * 27 * 256
    (convolution,) = [each for each in profile.layers if "3 to 4" in each.name]
    assert convolution.flops == first
    blocks = 2 * 2 * (2 * 4 * 36 * 64)
    dense = 2 * 8 * 4 * 64 + 2 * 8 * image_env.CORNERS + 2 * 8
    assert profile.network.forward_flops == first + blocks + dense
    assert profile.network.forward_backward_flops == 3 * (first + blocks + dense) - first
    (result,) = profile.results
    assert result.reached is not None
    assert result.share == pytest.approx(result.reached.fps / result.limit_fps)
    assert "KNOW YOUR MACHINE" in text
    assert f"written to {path}" in text
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert path.with_suffix(".txt").read_text() in text


def test_a_configuration_is_written_from_it_and_a_run_with_it_knows_its_share(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "local_a2c_sequential.yaml"
    write = [*SMALL, "--algorithms", "a2c", "--reuse", "--write", str(path)]
    assert main(write) == 0
    assert f"a2c sequential: {path}" in capsys.readouterr().out
    config = build_config(read_config_file(path), str(path))
    assert (config.model.impala_channels, config.env.id) == ((4,), image_env.ID)
    assert config.hardware.num_threads is not None
    flags = ["--config", str(path), "--total-timesteps", "512", "--output-dir", str(tmp_path / "run")]
    assert train("a2c", "sequential", False, flags) == 0
    record = runs.record(tmp_path / "run")
    (profile,) = here.glob("*.json")
    assert record["efficiency"]["profile"] == str(profile)
    assert record["efficiency"]["share"] > 0
    capsys.readouterr()
    assert main(write) == 2
    assert f"{path} exists; use --overwrite" in capsys.readouterr().err
    assert main([*write, "--overwrite"]) == 0


def test_a_profile_of_another_network_is_not_reused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--set", "model.hidden_size=9", "--reuse", "--env", image_env.ID]
    assert main(flags) == 2
    assert "was made for another network" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--write", "x.txt"], "must end in .yaml"),
        (["--write", "mine.yaml"], "the name must end in _<algorithm>_<mode>.yaml"),
        (["--write", "a_ppo_parallel.yaml", "--algorithms", "impala"], "leave out ppo parallel"),
        (["--algorithms", "a3c", "--modes", "sequential"], "one sequential A3C worker is A2C"),
        (["--env", "nonsense"], "nonsense"),
        (["--set", "model.colour=red"], "model.colour"),
        (["--trace", "ppo"], "possible are ppo_sequential"),
        (["--trace", "ppo_sequential", "--write", "x_ppo_parallel.yaml"], "--write writes nothing"),
        (["--trace", "a2c_parallel", "--algorithms", "ppo"], "--trace names the algorithm"),
        (["--trace", "a2c_parallel", "--overwrite"], "--trace names the algorithm"),
        (["--trace", "a2c_sequential", "--env", "coinrun", "maze"], "coinrun maze: --trace runs one"),
        (["--trace", "a2c_sequential", "--env", "all"], "--env all: --trace runs one environment"),
        (["--trace", "a2c_sequential", "--env", "nonsense"], "nonsense"),
        (["--overwrite"], "nothing to overwrite without --write"),
        (["--quick", "--reuse"], "not allowed with"),
    ],
)
def test_wrong_flags_produce_a_one_line_error_before_measuring(
    flags: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("rlcb.cli.profile.measure", lambda *_: pytest.fail("it was measured"))
    monkeypatch.setattr("rlcb.profiling.trace.trace", lambda *_: pytest.fail("it was traced"))
    monkeypatch.chdir(tmp_path)
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_first_environment_is_that_of_the_limits_and_all_means_every_game() -> None:
    def ids(*names: str) -> list[str]:
        arguments = make_parser().parse_args(["--env", *names, "--algorithms", "ppo"])
        configs = configurations(selected_pairs(arguments), arguments)
        return [each.id for each in environments(configs["ppo", "parallel"], arguments.env)]

    assert ids("maze", "coinrun", "maze") == ["procgen-maze-v0", "procgen-coinrun-v0"]
    assert ids("all")[0] == "procgen-coinrun-v0"  # the configurations'
    assert sorted(ids("all")) == [f"procgen-{game}-v0" for game in GAMES]


def test_a_signal_ends_the_measurement_and_every_process(tmp_path: Path) -> None:
    environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path / "profiles"), LOCK: str(tmp_path / "lock")}
    flags = (*SMALL, "--quick", "--algorithms", "a2c", "--modes", "sequential")
    process = runs.start("profile_cpu.py", *flags, env={**environment, "RUN": str(tmp_path)})
    try:
        assert process.stdout is not None
        assert "starting a process for each core" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error.splitlines()[-1] == "interrupted: nothing was written"
    assert not (tmp_path / "profiles").exists()
    assert runs.processes_of(tmp_path) == []


def test_reusing_needs_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--reuse", "--output-dir", str(tmp_path)]) == 2
    assert f"there is no profile in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "flags", "kinds"),
    [
        ("a2c_sequential", (), ["learner"]),
        ("a3c_parallel", (), ["learner"]),  # four workers, which draw updates from one budget
        ("impala_parallel", ("impala.num_actors=1", "impala.num_learners=1"), ["actor", "learner"]),
        (
            "ppo_distributed",
            ("cluster.num_workers=2", "training.n_steps=16", "training.batch_size=64"),
            ["learner"],
        ),
    ],
)
def test_an_update_of_a_real_run_is_traced(
    tmp_path: Path, name: str, flags: tuple[str, ...], kinds: list[str]
) -> None:
    settings = [word for flag in flags for word in ("--set", flag)]
    result = profile_cpu(tmp_path, "--trace", name, *settings)
    assert result.returncode == 0, result.stderr
    traces = sorted((tmp_path / "profiles/traces").iterdir())
    assert [path.name for path in traces] == [f"{name}_{kind}.json" for kind in kinds]
    for path in traces:
        operators = {each.get("name") for each in json.loads(path.read_text())["traceEvents"]}
        assert "aten::convolution" in operators
        assert ("aten::convolution_backward" in operators) == ("learner" in path.name)
        assert f"written to {path}" in result.stdout
    assert "of the call" in result.stdout


def test_a_failed_run_produces_a_one_line_error(tmp_path: Path) -> None:
    settings = ("--set", f"training.n_steps={10**9}", "--algorithms", "a2c", "--modes", "sequential")
    result = profile_cpu(tmp_path, "--trace", "a2c_sequential", *settings[:2])
    assert result.returncode == 1
    assert result.stderr.startswith("profile_cpu.py: failed: the traced run failed")
    assert result.stderr.count("\n") == 1
