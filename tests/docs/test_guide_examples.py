"""The worked examples of CONTRIBUTING.md: applied to a copy of the project, and trained with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import guide_blocks as guide
from tests import runs
from tests.guide_programs import program_of
from tests.guide_walk import NOT_OURS, shrink_training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CONTRIBUTING = runs.PROJECT / "CONTRIBUTING.md"
# Runs programs one after another in one process, which loads torch once.
DRIVER = """
import json, runpy, sys
for sys.argv in json.load(sys.stdin):
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            sys.exit(f"{' '.join(sys.argv)} ended with {end.code}")
"""


def apply_diff(project: Path, block: guide.Block) -> None:
    """Make the changes of a diff block: `--- file`, then hunks, `@@` between them, found by their words."""
    head, *lines = block.text.splitlines()
    path = project / head.removeprefix("--- ")
    text = path.read_text(encoding="utf-8")
    for hunk in "\n".join(lines).split("\n@@\n"):
        before = "\n".join(line[1:] for line in hunk.splitlines() if line[:1] != "+")
        after = "\n".join(line[1:] for line in hunk.splitlines() if line[:1] != "-")
        assert text.count(before) == 1, (
            f"{block.place}: {head} has {text.count(before)} places like\n{before}"
        )
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


def write_file(project: Path, block: guide.Block) -> None:
    """Write a block whose first line is a comment that names a file."""
    first = block.text.splitlines()[0]
    assert first.startswith("# "), f"{block.place}: the first line names the file"
    path = project / first.removeprefix("# ")
    assert not path.exists(), f"{block.place}: {path.name} is there already"
    path.write_text(block.text + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with all examples applied."""
    copy = tmp_path_factory.mktemp("project")
    for folder in ("src", "config"):
        shutil.copytree(runs.PROJECT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [
        *runs.PROJECT.glob("*.py"),
        runs.PROJECT / "pyproject.toml",
        runs.PROJECT / "requirements.txt",
    ]:
        shutil.copy(path, copy)
    for block in guide.blocks(CONTRIBUTING):
        if block.language == "diff":
            apply_diff(copy, block)
        elif block.language in ("python", "yaml"):
            write_file(copy, block)
    return copy


@pytest.fixture(scope="module")
def output(project: Path) -> str:
    """What the commands of the guide print, run in the copy with small budgets."""
    here, apart = [], []
    for block in guide.blocks(CONTRIBUTING):
        for command in guide.commands(block) if block.language == "bash" else []:
            program = program_of(command.words, project)
            if program is None:
                assert command.words[0] in NOT_OURS, command.place
                continue
            flags = list(program.flags)
            if program.training is not None:
                flags = [*shrink_training(program, 0), "--set", "logging.tensorboard=false"]
            several = program.training is not None and program.training[1] == "parallel"
            (apart if several else here).append([program.name, *flags])
    assert len(apart) == 1
    printed = run(project, [sys.executable, "-c", DRIVER], json.dumps(here))
    run(project, [sys.executable, *apart[0]])
    return printed


def run(project: Path, command: list[str], stdin: str = "") -> str:
    done = subprocess.run(
        command,
        input=stdin,
        cwd=project,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_the_environment_trains_and_is_evaluated(project: Path, output: str) -> None:
    assert runs.record(project / "runs/signals")["status"] == "completed"
    (evaluation,) = (project / "runs/signals/evaluation").glob("*.json")
    result = json.loads(evaluation.read_text())["splits"]["full"]
    assert set(result["lengths"]) == {20}  # env.kwargs.length


def test_the_metrics_are_logged_and_compared(project: Path, output: str) -> None:
    for row in runs.rows(project / "runs/value_mean"):
        assert isinstance(row["train/value_mean"], float)
    (game,) = json.loads((project / "runs/comparison.json").read_text())["games"].values()
    lengths = game["groups"][0]["metrics"]["episode_length"]
    wanted = runs.record(project / "runs/value_mean")["performance"]["mean_length_last_100_episodes"]
    assert lengths["mean"] == pytest.approx(wanted)
    assert "Episode length (steps)" in (project / "runs/comparison.md").read_text()


def test_the_network_is_the_one_that_learns(project: Path, output: str) -> None:
    assert "PooledCNN" in output
    shapes = {
        name: tuple(each.shape)
        for name, each in runs.checkpoint(project / "runs/pooled")["learner"]["model"].items()
    }
    assert shapes["value.weight"] == (1, 32)
    assert not any("dense" in name for name in shapes)


def test_the_algorithm_learns_the_same_in_one_process_and_in_two(project: Path, output: str) -> None:
    for row in runs.rows(project / "runs/awr"):
        assert row["train/weight"] > 0
    one, two = (runs.parameters(project / name) for name in ("runs/awr", "runs/awr_parallel"))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert "AWR" in output and "awr_sequential_coinrun_seed42" not in output  # a plan alone


def test_the_examples_are_in_the_style_of_the_project(project: Path) -> None:
    heads = [
        block.text.splitlines()[0][2:] for block in guide.blocks(CONTRIBUTING) if block.language != "bash"
    ]
    files = sorted({head.lstrip("- ") for head in heads if head.endswith(".py")})
    assert "src/rlcb/rl/awr.py" in files and "src/rlcb/rl/models.py" in files
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *files],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout
