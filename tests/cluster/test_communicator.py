"""How a rank waits for an operation of gloo's: a little at a time, looking whether the others live."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import pytest

from rlcb.cluster.communicator import ClusterCommunicator
from rlcb.errors import PeerLost


class Work:
    """An operation that is done after some looks, and fails then if it has an error. As gloo's it says that
    the time is over if it is not done when the time is over, even if it is done a moment later."""

    def __init__(self, looks: int, error: str | None = None) -> None:
        self.looks, self.error = looks, error

    def wait(self, timeout: timedelta | None = None) -> None:
        if self.looks:
            self.looks -= 1
            assert timeout is not None, "waited for ever"
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise RuntimeError(self.error)

    def is_completed(self) -> bool:
        return self.looks == 0


class Watchdog:
    def __init__(self) -> None:
        self.checks = 0

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check(self) -> None:
        self.checks += 1

    def agree(self, leaving: Exception) -> Exception:
        return leaving


@pytest.fixture
def communicator() -> ClusterCommunicator:
    made = object.__new__(ClusterCommunicator)
    made.watch = Watchdog()  # type: ignore[assignment]
    return made


def test_an_operation_that_is_done_just_when_the_time_is_over_has_not_failed(
    communicator: ClusterCommunicator,
) -> None:
    communicator.wait(Work(looks=1))


def test_the_others_are_looked_after_while_an_operation_takes_long(communicator: ClusterCommunicator) -> None:
    communicator.wait(Work(looks=4))
    assert communicator.watch.checks == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_an_operation_that_fails_is_a_lost_peer(communicator: ClusterCommunicator, looks: int) -> None:
    with pytest.raises(PeerLost, match="Connection closed by peer"):
        communicator.wait(Work(looks, "Connection closed by peer\nat pair.cc"))
