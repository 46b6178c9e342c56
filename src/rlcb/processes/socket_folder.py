"""The folder for this process's local sockets: its path is short, and it goes when the process ends.

The address of a Unix socket holds about 100 bytes, and TMPDIR may be longer on a cluster. multiprocessing
makes a folder below TMPDIR and removes it only when Python shuts down in order, which a run that must not
wait for lost peers does not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing import process, util
from pathlib import Path

LONGEST = 60
"""Characters of a parent folder that leave room for the names of the folder and its socket."""
PREFIX = "rlcb-"


def short_parent() -> str:
    """Return the temporary folder, or a shorter one that can be written to if its path is too long."""
    usual = tempfile.gettempdir()
    short = (folder for folder in ("/tmp", "/var/tmp", "/dev/shm") if os.access(folder, os.W_OK))
    return usual if len(os.fsencode(usual)) <= LONGEST else next(short, usual)


def make_socket_folder() -> Path:
    """Make multiprocessing put this process's sockets into a short folder; return the folder."""
    config = process.current_process()._config  # type: ignore[attr-defined]  # where get_temp_dir looks
    if "tempdir" not in config:
        config["tempdir"] = tempfile.mkdtemp(prefix=PREFIX, dir=short_parent())
        util.Finalize(None, remove_socket_folder, exitpriority=-100)
    return Path(config["tempdir"])


def remove_socket_folder() -> None:
    """Remove the folder, if there is one. Call it before ending this process with os._exit."""
    folder = process.current_process()._config.get("tempdir")  # type: ignore[attr-defined]
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
