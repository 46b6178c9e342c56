"""The comparison with other libraries: that all sides do the same, and how their programs are measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from perf.peers import install as peers_install
from perf.peers.cases import CASES, OWN, SIDES, Case, Side
from perf.peers.install import PeerUnavailable
from perf.peers.programs import plain_loop
from perf.peers.programs.networks import NETWORKS
from perf.peers.programs.protocol import most_workers
from perf.peers.run import Point, Program, Window, measure
from rlcb import cpu
from rlcb.errors import RunError
from tests import runs

CASE = next(case for case in CASES if case.name == "ppo-impala")


# --- What is compared is the same ---


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_usual_networks_have_as_many_parameters_as_this_projects(case: Case) -> None:
    heads = torch.nn.Linear(case.hidden_size, 15), torch.nn.Linear(case.hidden_size, 1)
    modules = (NETWORKS[case.network](case.hidden_size), *heads)
    counted = sum(each.numel() for module in modules for each in module.parameters())
    assert counted == case.num_parameters
    frames = torch.rand(2, 3, 64, 64)
    assert modules[0](frames).shape == (2, case.hidden_size)


def test_the_usual_impala_network_computes_what_this_projects_computes() -> None:
    """With the same weights; the dense layer of this project takes its inputs in memory order."""
    from perf.peers.cases import FRAMES
    from rlcb.rl.models import ImpalaCNN

    usual, ours = NETWORKS["impala"](256), ImpalaCNN(FRAMES.network_shape, (16, 32, 32), 256)
    weights = [each.detach().clone() for each in usual.parameters()]
    weights[-2] = weights[-2].view(256, 32, 8, 8).permute(0, 2, 3, 1).flatten(1)
    for parameter, weight in zip(ours.parameters(), weights, strict=True):
        parameter.data.copy_(weight)
    frames = torch.rand(3, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(frames), usual(frames))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_a_peer_is_given_the_settings_that_this_project_trains_with(case: Case, mode: str) -> None:
    from rlcb.cli.flags import make_parser
    from rlcb.cli.train import resolve_config

    words = SIDES[mode].command(case, Path("python"), Path("folder"))
    script = Path(words[1]).name
    assert (runs.PROJECT / script).exists()
    config = resolve_config(make_parser(case.algorithm, mode, None).parse_args(words[2:]))
    given = json.loads(SIDES["sb3"].command(case, Path("python"), Path("folder"))[-1])
    ours = {**config.training.model_dump(), **config.model.model_dump(), "num_envs": config.env.num_envs}
    for key in ("num_envs", "hidden_size", *(key for key in given if key in config.training.model_dump())):
        assert given[key] == ours[key], key
    assert given["network"] == config.model.architecture
    assert not config.training.clip_value_loss and config.training.normalize_rewards
    assert given["tune_allocator"] is False
    assert json.loads(SIDES["sb3-pages"].command(case, Path("python"), Path("folder"))[-1])["tune_allocator"]


# --- Programs ---

TALKS = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(os.environ["PIDS"], "w").write(f"{os.getpid()} {child.pid}")
def say(**message):
    print("PEER " + json.dumps(message), flush=True)
print("a warning of some library")
say(parameters=PARAMETERS, threads=2, versions={"torch": "2.13.0"})
for update in range(1, 1000):
    say(timesteps=600 * update, seconds=4.0 * update)
    time.sleep(0.05)
"""


def say(monkeypatch: pytest.MonkeyPatch, code: str, *options: str) -> None:
    """Let a side be this program, which Python runs with these options."""
    side = Side("a program", OWN, lambda case, python, folder: [sys.executable, *options, "-c", code])
    monkeypatch.setitem(SIDES, "plain", side)


@pytest.mark.timeout(180)
def test_a_program_is_measured_and_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    say(monkeypatch, TALKS.replace("PARAMETERS", str(CASE.num_parameters)))
    found = measure("plain", CASE, Window(seconds=20, updates=2))
    assert found.fps == 150.0  # 600 timesteps in 4 seconds, by its own clock
    assert found.updates >= 5 and found.seconds == 4.0 * found.updates
    assert found.versions == {"torch": "2.13.0"}
    assert 1 < found.peak_memory_mb < 1000
    assert 0 <= found.others_percent <= 100
    for pid in (tmp_path / "pids").read_text().split():
        assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


@pytest.mark.timeout(180)
def test_a_program_with_a_network_of_another_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    say(monkeypatch, TALKS.replace("PARAMETERS", str(CASE.num_parameters + 1)))
    with pytest.raises(RunError, match=r"626,257 parameters .* 626,256: no comparison"):
        measure("plain", CASE, Window())


@pytest.mark.timeout(180)
def test_a_program_that_ends_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "import sys; print('one'); sys.exit('no environment of that name')")
    with pytest.raises(PeerUnavailable, match="a program ended with code 1: no environment of that name"):
        measure("plain", CASE, Window())


@pytest.mark.timeout(180)
def test_a_program_finds_this_package_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    say(monkeypatch, "import sys, rlcb.paths; sys.exit('found')", "-S")  # -S: without installed packages
    with pytest.raises(PeerUnavailable, match="a program ended with code 1: found"):
        measure("plain", CASE, Window())


def test_a_line_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    program = object.__new__(Program)
    program.side, program.output = SIDES["plain"], tmp_path / "stdout"
    lines = ['PEER {"parameters": 5, "versions": {}}', 'PEER {"timesteps": 1024, "seconds": 5.5}']
    program.output.write_text("\n".join([*lines, 'PEER {"timesteps": 20']))
    assert program.points() == [Point(5.5, 1024)]


# --- What the programs do ---


def test_the_plain_loop_has_environments_as_gym_makes_them_with_levels_of_their_own() -> None:
    """Procgen registers single environments without threads; with one seed all would show the same level."""
    assert plain_loop.PROCGEN_THREADS == 0
    envs = plain_loop.make_envs(3, gamma=0.99)
    try:
        frames, _ = envs.reset()
        assert frames.shape == (3, 64, 64, 3)
        assert not np.array_equal(frames[0], frames[1])
        assert not np.array_equal(frames[1], frames[2])
        same = plain_loop.make_env(1)
        assert np.array_equal(same.reset()[0], frames[1])
        same.close()
    finally:
        envs.close()


@pytest.mark.timeout(180)
def test_the_allocators_settings_come_before_torch_in_the_program_of_stable_baselines3() -> None:
    code = (
        "import runpy, sys\n"
        "from rlcb import cpu\n"
        "def tune():\n"
        "    loaded = {'torch', 'numpy', 'stable_baselines3'} & sys.modules.keys()\n"
        "    sys.exit(f'settings with {sorted(loaded)} loaded')\n"
        "cpu.tune_allocator = tune\n"
        "sys.argv = ['sb3', '{\"tune_allocator\": true}']\n"
        "runpy.run_module('perf.peers.programs.sb3', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=120, check=False, cwd=runs.PROJECT,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "settings with [] loaded"


def test_settings_of_the_allocator_that_come_too_late_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from perf.peers.programs.protocol import settings

    monkeypatch.setattr(cpu, "tune_allocator", lambda: pytest.fail("torch is loaded"))
    monkeypatch.setattr(sys, "argv", ["a program", '{"tune_allocator": true}'])
    with pytest.raises(SystemExit, match="too late: torch is loaded"):
        settings()
    monkeypatch.setattr(sys, "argv", ["a program", '{"tune_allocator": false}'])
    assert settings() == {"tune_allocator": False}


@pytest.mark.parametrize(
    ("batches", "cores", "workers"), [(16, 2, 2), (16, 3, 2), (16, 32, 16), (24, 5, 4), (7, 4, 1)]
)
def test_workers_share_the_environments_evenly(batches: int, cores: int, workers: int) -> None:
    assert most_workers(batches, cores) == workers


def test_an_environment_that_cannot_be_made_is_a_peer_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path, with_pip: bool) -> None:
        raise subprocess.CalledProcessError(1, ["python", "-m", "ensurepip"])

    monkeypatch.setattr(peers_install.venv, "create", fails)
    monkeypatch.setattr(peers_install, "FOLDER", tmp_path / "venvs")
    with pytest.raises(PeerUnavailable, match="a virtual environment could not be made") as error:
        peers_install.python_of("sb3")
    assert "\n" not in str(error.value)


@pytest.mark.timeout(180)
def test_a_peer_is_told_the_cores_and_says_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(cpu, "usable_cores", lambda: 3)
    code = TALKS.replace("PARAMETERS", str(CASE.num_parameters))
    say(monkeypatch, code.replace("threads=2", "threads=int(os.environ['OMP_NUM_THREADS'])"))
    assert measure("plain", CASE, Window(seconds=4, updates=1)).threads == 3
