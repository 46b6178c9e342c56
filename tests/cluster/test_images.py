"""The recipes of images. No Docker or Apptainer is needed: what they call and copy is checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from rlcb.paths import PROJECT

DOCKER = (PROJECT / "cluster" / "Dockerfile").read_text(encoding="utf-8")
APPTAINER = (PROJECT / "cluster" / "apptainer.def").read_text(encoding="utf-8")


def test_both_recipes_have_the_same_base_packages_and_setup() -> None:
    base = re.search(r"(?m)^FROM (\S+)$", DOCKER)
    assert base is not None and f"From: {base.group(1)}\n" in APPTAINER
    for text in (DOCKER, APPTAINER):
        assert "apt-get install -y --no-install-recommends g++ libgl1 libglib2.0-0" in text
        assert "TORCH_BUILD=cpu ./setup.sh" in text
        assert "/opt/rlcb/venv/bin:$PATH" in text


def test_the_setup_that_the_recipes_call_accepts_their_settings() -> None:
    environment = {**os.environ, "TORCH_BUILD": "cpu", "PYTHON": sys.executable, "VENV": "venv_of_an_image"}
    result = subprocess.run(
        ["./setup.sh", "--plan"], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert not (PROJECT / "venv_of_an_image").exists()


def test_images_leave_out_the_virtual_environment_and_results() -> None:
    ignored = (PROJECT / ".dockerignore").read_text(encoding="utf-8").split()
    for name in ("venv", "runs", "benchmarks"):
        assert name in ignored
        assert f"/opt/rlcb/{name}" in APPTAINER
