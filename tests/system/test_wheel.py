"""The wheel: its commands work in a folder without the project's files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import PROJECT

pytestmark = pytest.mark.slow

WITHOUT_CHECKOUT = "import os, sys\nsys.path = [p for p in sys.path if os.path.basename(p) != 'src']\n"
"""A sitecustomize that hides an editable installation of the project."""


def run(*words: object, **options: object) -> str:
    """Run a program to its end and return its output; it must succeed."""
    found = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=120, check=False, **options
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def pip(*words: object) -> None:
    offline = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", *words, *offline, cwd="/")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the unpacked wheel, built from a copy of the project's source."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("src", "config", "cluster"):
        unwanted = shutil.ignore_patterns("*.egg-info", "__pycache__", "local_*")
        shutil.copytree(PROJECT / name, source / name, ignore=unwanted)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    for path in PROJECT.glob("requirements*.txt"):
        shutil.copy(path, source)
    pip("wheel", source, "--no-build-isolation", "--wheel-dir", folder)
    (wheel,) = folder.glob("*.whl")
    pip("install", wheel, "--target", folder / "target")
    shutil.rmtree(source)
    (folder / "target" / "sitecustomize.py").write_text(WITHOUT_CHECKOUT, encoding="utf-8")
    return folder / "target"


def test_the_installed_commands_train_evaluate_and_compare(target: Path, tmp_path: Path) -> None:
    def rlcb(*words: object) -> str:
        return run(target / "bin" / "rlcb", *words, cwd=tmp_path, env=environment)

    environment = {**os.environ, "PYTHONPATH": str(target)}
    where = "import sys, rlcb, rlcb.paths as p; print(rlcb.__file__, p.IS_CHECKOUT, *sys.path, sep='\\n')"
    place, is_checkout, *path = run(sys.executable, "-c", where, cwd=tmp_path, env=environment).splitlines()
    assert (Path(place), is_checkout) == (target / "rlcb" / "__init__.py", "False")
    assert [entry for entry in path if entry and Path(entry, "rlcb").exists()] == [str(target)]

    assert "usage: rlcb COMMAND" in rlcb("--help")
    assert "export" in rlcb("export", "--help")
    small = ("--env", "CartPole-v1", "--num-workers", 2, "--num-envs", 2, "--set", "model.mlp_sizes=[8]")
    size = ("--n-steps", 32, "--batch-size", 32, "--total-timesteps", 128)
    output = rlcb("train", *small, *size, "--output-dir", "run")
    assert "completed" in output
    assert "CartPole-v1" in rlcb("evaluate", "run", "--num-episodes", 2)
    assert list((tmp_path / "run" / "evaluation").glob("*.json"))
    rlcb("export", "run", "--output", "exported")
    load = "import rlcb; print(rlcb.load('exported').predict([0.0, 0.0, 0.0, 0.0]))"
    assert run(sys.executable, "-c", load, cwd=tmp_path, env=environment).strip() in ("0", "1")
    rlcb("compare", "run", "--output", "comparison.png")
    assert {"comparison.html", "comparison.json", "comparison.png"} <= {p.name for p in tmp_path.iterdir()}


def test_the_wheel_names_its_extras(target: Path) -> None:
    (metadata,) = target.glob("rl_cluster_benchmark-*.dist-info/METADATA")
    lines = metadata.read_text(encoding="utf-8").splitlines()
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if line.startswith("Provides-Extra: ")}
    assert extras == {"atari", "dev", "minigrid", "track", "tune"}
    for extra, package in (("track", "wandb"), ("track", "trackio"), ("tune", "optuna"), ("atari", "ale-py")):
        assert any(line.startswith(f"Requires-Dist: {package}") and extra in line for line in lines), package


def test_the_native_kernels_build_from_the_installed_package(target: Path, tmp_path: Path) -> None:
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("there is no C++ compiler")
    environment = {**os.environ, "PYTHONPATH": str(target), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    output = run(sys.executable, "-m", "rlcb.kernels.build", cwd=tmp_path, env=environment)
    assert "error" not in output.lower()
