"""Starting a command: Ctrl-C while its modules load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIKE_NUMPY = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt as error:
    raise ImportError("failed to import") from error
"""


def test_ctrl_c_ends_a_command_quietly_even_if_a_module_that_loads_makes_another_error_of_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "like_numpy.py").write_text(LIKE_NUMPY)
    code = "from rlcb.start import start; start('like_numpy')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", str(tmp_path)])}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
