"""Actors of other machines for a test: real ones in threads, and one that the test drives by hand."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlcb.parallel.gate import Gate
from rlcb.parallel.heartbeat import Heartbeats
from rlcb.parallel.messages import MessageStream, RunEnded, connect, unroll_arrays, welcome
from rlcb.parallel.remote_actor import RemoteActor
from rlcb.parallel.unroll_compression import compress
from rlcb.rl.rollout_buffer import RolloutBuffer
from tests.impala_team import Team

HOST = "127.0.0.1"


def gate_of(team: Team) -> Gate:
    gate = team.learner.gate
    assert gate is not None
    return gate


@contextmanager
def joined(team: Team, number: int) -> Iterator[list[RemoteActor]]:
    """Actors in threads, connected to the gate of a team until its run ends; enter it inside of `acting`."""
    actors: list[RemoteActor] = []
    ends: list[BaseException] = []
    heartbeats = Heartbeats(multiprocessing.get_context("spawn"), number)

    def act(rank: int) -> None:
        heartbeats.begin(rank)
        stream = connect((HOST, gate_of(team).port))
        try:
            actors.append(RemoteActor(stream, heartbeats, rank))
            actors[-1].act()
        except BaseException as end:
            ends.append(end)
        finally:
            stream.close()

    threads = [threading.Thread(target=act, args=(rank,), daemon=True) for rank in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield actors
        team.learner.finish()
        for thread in threads:
            thread.join(20)
        assert [type(end) for end in ends] == [RunEnded] * number, ends
    finally:
        heartbeats.abort()


class HandActor:
    """The connection of an actor whose every message the test sends itself."""

    def __init__(self, team: Team) -> None:
        """Say hello, and be ready with the environments that the run has."""
        gate, size = gate_of(team), team.store.size
        self.stream: MessageStream = connect((HOST, gate.port))
        self.told = welcome(self.stream)
        ready = {"spaces": gate.spaces.to_dict(), "parameters": gate.num_parameters}
        self.stream.send({"ready": ready})
        self.parameters = np.empty(gate.num_parameters, np.float32)
        self.unroll = RolloutBuffer(size.n_steps, size.num_envs, size.spaces)
        self.last = np.zeros_like(team.store.last_observations[0])

    def permit(self) -> int:
        """Wait for the permit of the next unroll, and return its number."""
        deadline, message = time.monotonic() + 30, self.stream.receive()
        while "permit" not in message:
            assert "alive" in message, message
            assert time.monotonic() < deadline, "no permit came"
            message = self.stream.receive()
        if message["permit"]["newer"]:
            self.stream.receive_arrays([self.parameters])
        return int(message["permit"]["number"])

    def fill(self, mark: float) -> None:
        """Make every observation of the next unroll `mark`; the other arrays are zeros."""
        for array in unroll_arrays(self.unroll, self.last):
            array[...] = 0
        self.unroll.observations[...] = mark
        self.last[...] = mark

    def send(self, mark: float, compressed: bool = False) -> None:
        """Send an unroll."""
        self.fill(mark)
        facts: dict[str, Any] = {"phases": [0.0] * 5, "episodes": [], "compressed": compressed}
        arrays = unroll_arrays(self.unroll, self.last)
        self.stream.send({"unroll": facts}, [compress(arrays)] if compressed else arrays)

    def close(self) -> None:
        self.stream.close()
