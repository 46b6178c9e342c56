"""The kernels under AddressSanitizer: no read or write outside of a tensor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcb.kernels.build import compile_library, find_compiler
from tests.runs import PROJECT

pytestmark = pytest.mark.timeout(600)

SANITIZE = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g")
OVERRUN = """
import torch
from pathlib import Path
from rlcb.kernels.library import Library
import sys
small = torch.zeros(16)
Library(Path(sys.argv[1])).max_pool(small.data_ptr(), small.data_ptr(), small.data_ptr(), 1, 64, 64, 16)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "convolutions.so"
    compile_library(path, SANITIZE)
    return path


def sanitized(*words: object) -> subprocess.CompletedProcess[str]:
    """Run Python with the runtime of AddressSanitizer loaded first."""
    found = subprocess.run(
        [*find_compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    environment = {
        **os.environ,
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(PROJECT / "src"),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_every_layer_stays_inside_its_memory(library: Path) -> None:
    result = sanitized("-m", "rlcb.kernels.check", library)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == "all layers are right\n"


def test_the_sanitizer_would_notice(library: Path) -> None:
    result = sanitized("-c", OVERRUN, library)
    assert result.returncode != 0
    assert "ERROR: AddressSanitizer" in result.stderr
