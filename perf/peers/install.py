"""Virtual environments for the peers, each of its own, made when they are first needed.

Every one of them sees this project's packages behind its own. So torch, NumPy and Procgen are the same files
on all sides, and pip installs only what a peer needs beside them, or in another version.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from rlcb.errors import first_line
from rlcb.paths import PROJECT

FOLDER = PROJECT / "perf" / "peers" / "venvs"
SHARED = ("torch", "numpy", "setuptools")  # what a peer must not replace; the last for Procgen's sake
STAMP = ".packages"


class PeerUnavailable(Exception):
    """A peer that cannot be installed, or does not run, here; the message says why in one line."""


@dataclass(frozen=True)
class Peer:
    """A library to measure against."""

    packages: tuple[str, ...]
    """What pip is asked for."""
    alone: tuple[str, ...] = ()
    """Packages that are installed without what they ask for."""


PEERS = {
    "sb3": Peer(("stable-baselines3==2.9.2",)),
    "cleanrl": Peer(("gym==0.23.1", "tensorboard"), alone=("cleanrl==1.2.0",)),
    "sample-factory": Peer(("sample-factory==2.1.1",)),
}


def python_of(name: str) -> Path:
    """The Python of a peer's environment, which is made if need be. Raises PeerUnavailable."""
    peer, folder = PEERS[name], FOLDER / name
    python = folder / "bin" / "python"
    wanted = "\n".join([*own_versions(), *peer.packages, *peer.alone])
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"Making {folder} and installing {', '.join(peer.packages)}", flush=True)
    if folder.exists():
        shutil.rmtree(folder)
    create(folder)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(own_versions()) + "\n", encoding="utf-8")
    install(name, python, "--constraint", str(constraints), *peer.packages)
    if peer.alone:
        install(name, python, "--no-deps", "--ignore-requires-python", *peer.alone)
    stamp.write_text(wanted, encoding="utf-8")
    return python


def create(folder: Path) -> None:
    """Raises PeerUnavailable."""
    try:
        venv.create(folder, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerUnavailable(
            f"a virtual environment could not be made ({first_line(error)}): does `python -m venv` work here?"
        ) from error


def own_versions() -> list[str]:
    return [f"{name}=={importlib.metadata.version(name).split('+')[0]}" for name in SHARED]


def install(name: str, python: Path, *arguments: str) -> None:
    words = [str(python), "-m", "pip", "install", "--quiet", *arguments]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        reason = (lines or result.stderr.splitlines() or ["no reason given"])[0].removeprefix("ERROR: ")
        raise PeerUnavailable(f"{name} could not be installed: {reason}")
