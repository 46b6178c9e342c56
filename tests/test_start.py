"""Ctrl-C while a program loads its modules ends it without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import runs

HEAVY = ("numpy", "yaml", "pydantic", "psutil", "packaging", "torch", "matplotlib")
PROGRAMS = sorted(path.name for path in runs.PROJECT.glob("*.py") if path.name != "setup.py")


@pytest.mark.parametrize("program", [*PROGRAMS, "-m rlcb compare", "-m rlcb evaluate"])
def test_ctrl_c_while_modules_load_ends_a_program_quietly(tmp_path: Path, program: str) -> None:
    """Packages that raise KeyboardInterrupt when they are imported stand for the moment of the signal."""
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text("raise KeyboardInterrupt\n")
    late = {"compare": ("--runs", "."), "plot": ("--log-file", ".")}  # parse their flags before they load
    flags = next((flags for name, flags in late.items() if name in program), ("--no-such-flag",))
    path = os.pathsep.join((str(tmp_path), str(runs.PROJECT / "src")))
    done = subprocess.run(
        [sys.executable, *program.split(), *flags],
        cwd=runs.PROJECT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")
