"""The tests of the kernels need a C++ compiler. Without one they skip, or fail where CI has installed it."""

from __future__ import annotations

import pytest

from tests.cluster_runs import require_compiler


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    require_compiler()
