"""quick_test.py passes on this quick_test, and says of a broken one what is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rlcb.cli import quick_test as installation
from rlcb.cli.quick_test import CheckFailed, CheckWarning, Report, explain

ROOT = Path(__file__).resolve().parents[2]


def quick_test(cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "quick_test.py")],
        cwd=cwd,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )


def lines_of(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    """Name of a check -> its mark and its text."""
    parts = [
        line.split(maxsplit=2) for line in done.stdout.splitlines() if line[:1] in "✓✗![" and line.strip()
    ]
    return {name: (mark, text) for mark, name, text in parts}


def broken(folder: Path, module: str, code: str) -> str:
    """Return a PYTHONPATH on which importing `module` runs `code`, and which has this package."""
    (folder / module).mkdir()
    (folder / module / "__init__.py").write_text(code)
    return os.pathsep.join([str(folder), str(ROOT / "src")])


@pytest.mark.slow
def test_this_installation_passes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = quick_test(tmp_path, TMPDIR=str(scratch))
    checks = lines_of(done)
    assert {mark for mark, _ in checks.values()} <= {"✓", "!"}, done.stdout
    assert done.returncode == 0
    assert done.stderr == ""
    assert "all 16 games of Procgen run" in checks["games"][1]
    assert "steps/s" in checks["games"][1]
    for algorithm in checks["algorithms"][1].split(", "):
        assert "one update" in checks[algorithm][1]
    assert "loaded unchanged" in checks["checkpoint"][1]
    assert checks["evaluation"][1].startswith("2 episodes")
    assert {"Python", "machine", "allocator", "packages", "PPO", "TensorBoard"} <= checks.keys()
    assert list(tmp_path.iterdir()) == [scratch]
    left = [path.name for path in scratch.iterdir()]
    assert not [name for name in left if not name.startswith("torchinductor")]  # torch's own cache


def test_a_broken_procgen_is_named_with_its_reason(tmp_path: Path) -> None:
    path = broken(tmp_path, "procgen", "raise ImportError('libQt5Core.so.5: cannot open shared object file')")
    done = quick_test(tmp_path, PYTHONPATH=path)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    checks = lines_of(done)
    name = next(name for name in ("procgen", "procgen-mirror") if name in checks)
    for check in (name, "games", "algorithms"):
        mark, text = checks[check]
        assert mark == "✗"
        assert "libQt5Core.so.5: cannot open shared object file" in text
    assert f"pip install --force-reinstall '{name}==0.10.7'" in checks[name][1]
    assert checks["Python"][0] == "✓"
    assert "checks failed" in done.stdout


def test_a_missing_package_comes_with_the_command_that_installs_it(tmp_path: Path) -> None:
    code = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    done = quick_test(tmp_path, PYTHONPATH=broken(tmp_path, "torch", code), PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    mark, text = lines_of(done)["algorithms"]
    assert (mark, text) == ("[FAIL]", "torch is missing: pip install -r requirements.txt")
    assert lines_of(done)["Python"][0] == "[ok]"
    assert done.stdout.isascii()


def test_packages_are_held_against_their_requirement() -> None:
    assert installation.problem_of(Requirement("pytest>=1")) is None
    assert installation.problem_of(Requirement("no-such-package>=2")) == (
        "is not installed: pip install 'no-such-package>=2'"
    )
    problem = installation.problem_of(Requirement("pytest<1"))
    assert problem is not None
    assert problem.startswith(f"is {pytest.__version__}, wanted <1: pip install")


def test_requirements_are_those_of_this_python() -> None:
    names = [each.name for each in installation.required()]
    assert len(names) == len(set(names))
    assert ("procgen" in names) != ("procgen-mirror" in names)
    assert {"torch", "numpy", "gymnasium", "tensorboard"} <= set(names)
    assert installation.OPTIONAL.keys() <= {name.lower() for name in names}
    assert not {"pytest", "ruff", "mypy", "hypothesis"} & set(names), "tools are not needed to run"


def test_a_missing_optional_package_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installation, "required", lambda: [Requirement("tensorboard<0.1")])
    report = Report()
    assert report.run("packages", lambda: installation.check_packages(report))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["!", "✓"]
    assert "(for curves in the browser)" in lines[0]
    assert report.failed == 0


def test_an_old_or_too_new_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ((3, 9), (3, 13)):
        monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
        with pytest.raises(CheckFailed, match=r"3\.10 to 3\.12"):
            installation.check_python()


def test_a_library_that_only_fails_in_use_gives_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def check() -> str:
        raise OSError("first line\nsecond line")

    def remark() -> str:
        raise CheckWarning("not here")

    report = Report()
    assert not report.run("thing", check)
    assert report.run("other", remark)
    assert (report.checks, report.failed) == (2, 1)
    out = capsys.readouterr().out.splitlines()
    assert out[0].split(maxsplit=2) == ["✗", "thing", "OSError: first line"]
    assert out[1].split(maxsplit=2) == ["!", "other", "not here"]


def test_a_fault_of_the_project_itself_is_no_missing_package() -> None:
    error = ModuleNotFoundError("No module named 'rlcb.nothing'", name="rlcb.nothing")
    assert explain(error) == "ModuleNotFoundError: No module named 'rlcb.nothing'"
