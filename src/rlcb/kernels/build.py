"""Builds the native kernels (convolutions.cpp) for this machine's processor, into the user's cache.

A library is compiled for one type of processor: nodes of a cluster may differ. It is written under another
name and renamed when it is complete, then checked in a process of its own against a float64 reference
(kernels/check.py): kernels that crash or give wrong numbers are never used.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rlcb import cpu
from rlcb.config.config import Config
from rlcb.files import write_atomically

logger = logging.getLogger(__name__)

AGAIN = "python -m rlcb.kernels.build checks again"
SOURCE = Path(__file__).with_name("convolutions.cpp")
PACKAGES = Path(__file__).resolve().parents[2]
FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")
COMPILE_SECONDS, CHECK_SECONDS = 300, 120


class KernelsUnavailable(Exception):
    """There are no native kernels on this machine; the message says why, in one line."""


def find_compiler() -> list[str]:
    """Return the command of a C++ compiler: CXX, the system's, or that of the package ziglang.

    Raises KernelsUnavailable if there is none.
    """
    wanted = os.environ.get("CXX", "").split()
    for command in filter(None, (wanted, ["c++"], ["g++"], ["clang++"])):
        if shutil.which(command[0]):
            return list(command)
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++"]
    raise KernelsUnavailable("no C++ compiler (install g++ or clang++, or `pip install ziglang`)")


@functools.cache
def processor() -> str:
    """Return a text that is the same for processors that can run the same machine code."""
    values = cpu.cpuinfo_values()
    instructions = values.get("flags") or values.get("Features") or ""  # x86 or ARM
    return "\n".join((platform.machine(), cpu.cpu_model(), cpu.cpu_identity(), instructions))


def cache_folder() -> Path:
    """Return the folder for compiled kernels: RLCB_KERNELS, or rlcb/kernels below the user's cache."""
    wanted = os.environ.get("RLCB_KERNELS")
    if wanted:
        return Path(wanted)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rlcb" / "kernels"


def library_path() -> Path:
    """Return where the library for this source and this processor is, or will be."""
    key = hashlib.sha256()
    for part in (SOURCE.read_bytes(), " ".join(FLAGS).encode(), processor().encode()):
        key.update(hashlib.sha256(part).digest())
    return cache_folder() / f"convolutions-{key.hexdigest()[:16]}.so"


def verdict_path(library: Path) -> Path:
    """Return where the result of checking a library with this version of the Python code around it is.

    It is an empty file, or says what is wrong.
    """
    code = b"".join(path.read_bytes() for path in sorted(SOURCE.parent.glob("*.py")))
    return library.with_suffix(f".{hashlib.sha256(code).hexdigest()[:8]}.checked")


def main() -> int:
    """Build the kernels if that has not been done, and say if runs will use them. Return the exit code.

    Kernels that failed their check are checked once more: the machine may have been busy.
    """
    verdict = verdict_path(library_path())
    if verdict.exists() and verdict.read_text():
        verdict.unlink()
    try:
        library = compiled_and_checked()
    except KernelsUnavailable as error:
        print(f"No kernels of our own, so PyTorch's compute the convolutions: {error}")
        return 1
    print(f"Kernels of the convolutions: compiled for this processor and checked ({library})")
    return 0


def build_ahead(config: Config) -> None:
    """Build the kernels of a run before it starts processes, which would all wait for that.

    Does nothing where the run will not use them. Where they cannot be built, the network says why.
    """
    images = config.env.is_image or config.model.architecture in ("impala", "nature")
    if images and config.hardware.kernels != "torch" and config.model.precision == "float32":
        with contextlib.suppress(KernelsUnavailable):
            compiled_and_checked()


def compiled_and_checked() -> Path:
    """Return the path of the library, after compiling and checking it if that has not been done before.

    Raises KernelsUnavailable if that is not possible.
    """
    library = library_path()
    verdict = verdict_path(library)
    if not verdict.exists():
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            with one_at_a_time(library.with_suffix(".lock")):
                if not verdict.exists():
                    if not library.exists():
                        logger.info("compiling the kernels of the convolutions for this processor, once")
                        compile_library(library)
                    check_library(library, verdict)
        except OSError as error:
            raise KernelsUnavailable(f"{library.parent}: {error.strerror or error}") from error
    failure = verdict.read_text()
    if failure:
        raise KernelsUnavailable(failure)
    return library


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let the processes of this machine take turns. Where files cannot be locked, they do the work twice."""
    with path.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_library(library: Path, extra_flags: tuple[str, ...] = ()) -> None:
    """Compile convolutions.cpp to `library`. Raises KernelsUnavailable if the compiler fails."""
    command = find_compiler()
    descriptor, unfinished = tempfile.mkstemp(dir=library.parent, suffix=".so")
    os.close(descriptor)
    try:
        result = subprocess.run(
            [*command, *FLAGS, *extra_flags, "-o", unfinished, str(SOURCE)],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
        )
        if result.returncode != 0:
            lines = result.stderr.splitlines() or [f"exit code {result.returncode}"]
            reason = next((line for line in lines if "error" in line), lines[0])
            raise KernelsUnavailable(f"{' '.join(command)} cannot compile the kernels: {reason}")
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, library)
    except subprocess.TimeoutExpired as error:
        raise KernelsUnavailable(f"{' '.join(command)} took more than {COMPILE_SECONDS} s") from error
    finally:
        Path(unfinished).unlink(missing_ok=True)


def check_library(library: Path, verdict: Path) -> None:
    """Check the kernels in another process; write why they fail to `verdict`, or nothing if they pass."""
    try:
        result = subprocess.run(
            [sys.executable, "-m", "rlcb.kernels.check", str(library)],
            env={**os.environ, "PYTHONPATH": str(PACKAGES), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
        )
        lines = (result.stdout + result.stderr).splitlines() or [f"exit code {result.returncode}"]
        failure = f"the check of the kernels failed: {lines[-1]}" if result.returncode else ""
    except subprocess.TimeoutExpired:
        failure = f"the check of the kernels took more than {CHECK_SECONDS} s"
    write_atomically(verdict, f"{failure} ({AGAIN})".encode() if failure else b"")


if __name__ == "__main__":
    raise SystemExit(main())
