"""Compares the packages of this Python with requirements.txt."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # may be missing itself, which is for the caller to report
    from packaging.requirements import Requirement

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements.txt"
# Modules that are not called like the package they come in.
MODULES = {"pyyaml": "yaml", "procgen-mirror": "procgen"}
# Training and evaluation work without these; the second column does not.
OPTIONAL = {
    "tensorboard": "curves in the browser",
    **dict.fromkeys(("pytest", "pytest-timeout", "hypothesis"), "make test"),
    **dict.fromkeys(("ruff", "mypy", "types-pyyaml", "types-psutil", "types-tqdm"), "make lint"),
}
TOOLS = OPTIONAL.keys() - {"tensorboard"}  # programs, and stubs without a module: not imported


def first_line(error: BaseException) -> str:
    """What an exception says, on one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no reason given"


def required() -> list[Requirement]:
    """The lines of requirements.txt that hold for this Python and system."""
    from packaging.requirements import Requirement

    lines = (line.split("#")[0].strip() for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines())
    requirements = [Requirement(line) for line in lines if line]
    return [each for each in requirements if each.marker is None or each.marker.evaluate()]


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def problem_of(requirement: Requirement) -> str | None:
    """Why a package will not do, with pip's remedy; None if it has a fitting version and can be imported."""
    name, wanted = requirement.name.lower(), f"'{requirement.name}{requirement.specifier}'"
    version = installed_version(name)
    if version is None:
        return f"is not installed: pip install {wanted}"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"is {version}, wanted {requirement.specifier}: pip install {wanted}"
    if name not in TOOLS:
        try:
            # Old Gym announces on every import that it is unmaintained.
            with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(MODULES.get(name, name.replace("-", "_")))
        except Exception as error:  # a broken package may raise anything
            reason = f"{type(error).__name__}: {first_line(error)}"
            return f"cannot be imported ({reason}): pip install --force-reinstall {wanted}"
    return None
