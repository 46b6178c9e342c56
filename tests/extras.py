"""Tests of environments that are extras of this project: skipped, with the reason, where one is missing."""

from __future__ import annotations

import importlib.util
import os

import pytest

from rlcb.config.env_packages import EnvPackage


def require(package: EnvPackage) -> None:
    """Skip the tests of a module if a package is not installed; fail where everything should be there."""
    missing = [name for name in package.modules if importlib.util.find_spec(name) is None]
    if not missing:
        return
    reason = f'{", ".join(missing)} is missing: pip install ".[{package.extra}]"'
    if os.environ.get("REQUIRE_REAL_COMPONENTS") == "1":
        pytest.fail(f"{reason}, but REQUIRE_REAL_COMPONENTS=1")
    pytest.skip(reason, allow_module_level=True)
