"""Tab completion, through the protocol between a shell and argcomplete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlcb.cli.completion import VALUES
from rlcb.config.games import GAMES
from rlcb.config.yaml_file import build_config, set_value
from rlcb.paths import PROJECT

RLCB = (sys.executable, "-m", "rlcb")


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT / "src"), **variables}


def completions(
    folder: Path, line: str, *, program: tuple[str, ...] = RLCB, start: int = 1, unloaded: str = "torch"
) -> list[str]:
    """Return what a shell offers at the end of a command line; `start` is the position of the program.

    Fails if the program loads the module `unloaded`.
    """
    answer = folder / "answer"
    variables = environment(
        _ARGCOMPLETE=str(start),
        COMP_LINE=line,
        COMP_POINT=str(len(line)),
        _ARGCOMPLETE_IFS="\n",
        _ARGCOMPLETE_STDOUT_FILENAME=str(answer),
        _ARGCOMPLETE_COMP_WORDBREAKS=" \t\n\"'><=;|&(:",
        PYTHONPROFILEIMPORTTIME="1",
    )
    done = subprocess.run(program, env=variables, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    assert not re.search(rf"\| +{unloaded}$", done.stderr, re.MULTILINE)
    return [word.strip() for word in answer.read_text().split("\n")]


def test_the_commands_are_offered(tmp_path: Path) -> None:
    assert {"train", "evaluate", "compare", "benchmark", "--help"} <= set(completions(tmp_path, "rlcb "))
    assert completions(tmp_path, "rlcb tr") == ["train"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rlcb train --alg", ["--algorithm"]),
        ("rlcb train --algorithm ", ["ppo", "a2c", "a3c", "impala"]),
        ("rlcb train --algorithm im", ["impala"]),
        ("rlcb train --algorithm impala --num-a", ["--num-actors"]),
        ("rlcb train --num-a", [""]),  # PPO has no actors
        ("rlcb train --mode distributed --node", ["--node-rank"]),
        ("rlcb train --env star", ["starpilot"]),
        ("rlcb train --env=star", ["starpilot"]),
        ("rlcb train --distribution-mode e", ["easy", "extreme", "exploration"]),
        ("rlcb train --set training.cl", ["training.clip_range=", "training.clip_value_loss="]),
        ("rlcb benchmark --algorithms ppo a", ["a2c", "a3c"]),
        ("rlcb benchmark --envs coinrun b", ["bigfish", "bossfight"]),
        ("rlcb tune --sampler ", ["tpe", "random"]),
        ("rlcb evaluate --split t", ["train", "test"]),
        ("rlcb compare --thr", ["--threshold"]),
        ("rlcb plot --x ", ["timesteps", "hours"]),
        ("rlcb profile --trace a3c", ["a3c_parallel"]),
        ("rlcb check-cluster --mega", ["--megabytes"]),
        ("rlcb quick-test --", ["--help"]),
    ],
)
def test_flags_and_values_are_offered_without_loading_torch(
    line: str, offered: list[str], tmp_path: Path
) -> None:
    assert completions(tmp_path, line) == offered


def test_a_loaded_module_would_be_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        completions(tmp_path, "rlcb train --alg", unloaded="pydantic")


def test_scripts_complete_as_the_command_does(tmp_path: Path) -> None:
    def script(line: str, start: int = 2) -> list[str]:
        name = line.split()[start - 1]
        return completions(tmp_path, line, program=(sys.executable, name), start=start)

    assert script("python train.py --mode d") == ["distributed"]
    assert script("python train_timed.py --dur") == ["--duration"]
    assert script("python run_benchmark.py --order ") == ["by-seed", "by-config"]


def test_every_entry_has_the_mark_that_shells_look_for() -> None:
    entries = [path for path in PROJECT.glob("*.py") if path.name != "setup.py"]
    package = PROJECT / "src" / "rlcb"
    for path in (*entries, package / "start.py", package / "__main__.py"):
        assert "PYTHON_ARGCOMPLETE_OK" in path.read_text()[:1024], path


def test_every_offered_setting_can_be_set() -> None:
    for word in VALUES["--set"]():
        data: dict[str, object] = {}
        set_value(data, word.removesuffix("="), None, "test")
        (section,) = data
        assert section in type(build_config({}, "defaults")).model_fields


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_after_the_documented_line(tmp_path: Path) -> None:
    (tmp_path / "rlcb").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rlcb "$@"\n')
    (tmp_path / "rlcb").chmod(0o755)
    script = """
        eval "$("$REGISTER" rlcb)"
        COMP_LINE="rlcb train --env c" COMP_POINT=18 COMP_TYPE=9 COMP_CWORD=3
        COMP_WORDS=(rlcb train --env c)
        _python_argcomplete rlcb c --env
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    register = Path(sys.executable).with_name("register-python-argcomplete")
    variables = environment(PATH=f"{tmp_path}:{os.environ['PATH']}", REGISTER=str(register))
    done = subprocess.run(
        ["bash", "-c", script], env=variables, cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == [game for game in GAMES if game.startswith("c")], done.stderr
