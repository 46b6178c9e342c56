"""The tests of the kernels need a C++ compiler. Without one they skip, or fail where CI has installed it."""

from __future__ import annotations

import pytest

from rlcb.kernels.build import KernelsUnavailable, find_compiler
from tests.cluster_runs import require_real


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    try:
        find_compiler()
    except KernelsUnavailable as error:
        require_real(str(error))
