"""Messages between the machines of a run: the learner and actors of other machines, as in the table, and
nodes that tell each other how many ranks they have (cluster/node_sizes.py).

A message is MAGIC, the lengths of its two parts, a JSON object, and the bytes of NumPy arrays. Nothing is
pickled. A receiver refuses what does not begin with MAGIC, objects of more than MAX_JSON bytes, and arrays of
another total size than it expects. There is no authentication.

    from                       key of the JSON object, and arrays
    node (join.py)             hello   host, versions, actors: a machine that would like to send actors
    actor (remote_actor.py)    hello   host, versions, spaces null: one of its actors
    gate                       refused text: why not
    gate -> node               welcome config, seats free for it; then status every few seconds
    gate -> actor              welcome config, first_env, begun unrolls of its seat
    actor                      ready   spaces and number of parameters of its environments and network
    gate -> actor              permit  number of the unroll, newer, seconds in which the last unroll came
                                       [parameters, if `newer`]
    actor                      alive   between steps, every ALIVE_SECONDS; the gate sends it while it waits
    actor                      unroll  phases, episodes, compressed [UNROLL_ARRAYS, last observations; if
                                       `compressed`, as one stream (unroll_compression.py)]
    gate                       end     status of the run: completed, or stopped (it may be resumed)
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcb import __version__
from rlcb.envs.spaces import Spaces
from rlcb.errors import UsageError
from rlcb.parallel.unroll_compression import byte_view, decompress, most_bytes
from rlcb.parallel.world import host_name
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.statistics import Episode
from rlcb.rl.timing import PHASES, PhaseTimer
from rlcb.software import describe_software

MAGIC = b"RLCB\x00\x02\r\n"  # with the number of the protocol
MAX_JSON = 2**20
CHUNK = 2**20  # bytes that have to pass within SILENCE_SECONDS
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 30.0  # without a byte from the other side, after which it counts as gone
LAST_SECONDS = 1.0  # to read the last message
ALIVE_SECONDS = 2.0  # between two signs of life
START_SECONDS = 120.0  # for an actor to make its environments
UNROLL_ARRAYS = (
    *("observations", "actions", "log_probs", "values", "bootstrap_values", "rewards"),
    *("terminated", "truncated"),
)
"""The arrays of a rollout that an actor writes; the others are computed by the learner."""

_HEAD = struct.Struct("!8sIQ")
Arrays = Sequence[NDArray[Any]]


class ConnectionLost(Exception):
    """The other side has closed the connection, is silent, or does not speak this protocol."""


class RunEnded(Exception):
    """The learners have made the last update. On other machines and in the gate, the message is the run's
    status: completed or stopped."""


class NoSeat(Exception):
    """The run has no seat for this actor."""


class MessageStream:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.settimeout(SILENCE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent_at = time.monotonic()
        self._array_bytes = 0

    def send(self, message: dict[str, Any], arrays: Arrays = ()) -> None:
        """Send a message. Raises ConnectionLost."""
        text = json.dumps(message, allow_nan=False).encode()
        parts = [byte_view(np.ascontiguousarray(each)) for each in arrays]
        head = _HEAD.pack(MAGIC, len(text), sum(part.nbytes for part in parts))
        try:
            self.socket.sendall(head + text)
            for part in parts:
                for start in range(0, part.nbytes, CHUNK):
                    self.socket.sendall(part[start : start + CHUNK])
        except OSError as error:
            raise ConnectionLost(_reason(error)) from None
        self.sent_at = time.monotonic()

    def send_alive(self) -> bool:
        """Send a sign of life if nothing was sent for ALIVE_SECONDS; return whether one was sent. Raises
        ConnectionLost."""
        due = time.monotonic() - self.sent_at > ALIVE_SECONDS
        if due:
            self.send({"alive": True})
        return due

    def readable(self, timeout: float, other: int | None = None) -> bool:
        """Wait until something can be read; False after `timeout` seconds, or if only the descriptor `other`
        can be read."""
        descriptors = [self.socket.fileno(), *([] if other is None else [other])]
        return self.socket.fileno() in select.select(descriptors, [], [], max(0.0, timeout))[0]

    def receive(self, timeout: float = SILENCE_SECONDS) -> dict[str, Any]:
        """Return the next message; if it has arrays, `receive_arrays` must follow.

        Raises ConnectionLost, also if nothing comes for `timeout` seconds.
        """
        if not self.readable(timeout):
            raise ConnectionLost(f"silent for {timeout:g} s")
        head = bytearray(_HEAD.size)
        self._fill(memoryview(head))
        magic, length, self._array_bytes = _HEAD.unpack(head)
        if magic != MAGIC or length > MAX_JSON:
            raise ConnectionLost("what it sent is no message of this protocol")
        text = bytearray(length)
        self._fill(memoryview(text))
        try:
            message = json.loads(text)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ConnectionLost("what it sent is no message of this protocol")
        return message

    def receive_arrays(self, arrays: Arrays, compressed: bool = False) -> int:
        """Fill contiguous arrays with the bytes that follow a message, and return how many these are. Raises
        ConnectionLost if they are not those of such arrays."""
        size, expected = self._array_bytes, sum(each.nbytes for each in arrays)
        if size > most_bytes(expected) if compressed else size != expected:
            raise ConnectionLost(f"it sent {size} bytes of arrays for {expected}")
        self._array_bytes = 0
        if not compressed:
            for each in arrays:
                self._fill(byte_view(each))
            return size
        stream = bytearray(size)
        self._fill(memoryview(stream))
        try:
            decompress(stream, arrays)
        except ValueError as error:
            raise ConnectionLost(f"its compressed arrays are damaged: {error}") from None
        return size

    def _fill(self, part: memoryview) -> None:
        """Read exactly as many bytes as `part` has."""
        while part.nbytes:
            try:
                count = self.socket.recv_into(part)
            except OSError as error:
                raise ConnectionLost(_reason(error)) from None
            if not count:
                raise ConnectionLost("it closed the connection")
            part = part[count:]

    def say_last(self, message: dict[str, Any]) -> None:
        """Send the last message, and wait a moment until the other side has read it.

        Closing the connection while bytes of the other side are unread could destroy the message.
        """
        try:
            self.send(message)
            self.socket.shutdown(socket.SHUT_WR)
            deadline, rest = time.monotonic() + LAST_SECONDS, bytearray(CHUNK)
            while self.readable(deadline - time.monotonic()) and self.socket.recv_into(rest):
                pass
        except (ConnectionLost, OSError):
            pass  # it has gone

    def close(self) -> None:
        self.socket.close()


def _reason(error: OSError) -> str:
    return f"silent for {SILENCE_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error.strerror)


def connect(address: tuple[str, int], actors: int | None = None) -> MessageStream:
    """Connect to a gate and say hello: as a machine with `actors` actors, or as one actor. Raises OSError or
    ConnectionLost."""
    stream = MessageStream(socket.create_connection(address, CONNECT_SECONDS))
    stream.send({"hello": {"host": host_name(), "versions": versions(), "actors": actors}})
    return stream


def welcome(stream: MessageStream, timeout: float = START_SECONDS) -> dict[str, Any]:
    """Wait for the gate's welcome and return it. Raises UsageError if it refuses, NoSeat, RunEnded and
    ConnectionLost."""
    message = stream.receive(timeout)
    while "alive" in message:
        message = stream.receive(timeout)
    if "refused" in message:
        raise UsageError(str(message["refused"]))
    if "full" in message:
        raise NoSeat
    if "end" in message:
        raise RunEnded(message["end"])
    if not isinstance(message.get("welcome"), dict):
        raise ConnectionLost("it did not answer as a run does")
    told: dict[str, Any] = message["welcome"]
    return told


def unroll_arrays(unroll: RolloutBuffer, last_observations: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the arrays of an unroll in the order in which they are sent."""
    return [*(getattr(unroll, name) for name in UNROLL_ARRAYS), last_observations]


def describe_unroll(timer: PhaseTimer, episodes: list[Episode], compressed: bool) -> dict[str, Any]:
    """Return what is sent with the arrays of an unroll, as `unroll_facts` reads it."""
    return {
        "phases": [timer.seconds[phase] for phase in PHASES],
        "episodes": [list(each) for each in episodes],
        "compressed": compressed,
    }


def unroll_facts(facts: Any) -> tuple[list[float], list[Episode], bool]:
    """Return an actor's seconds by phase, the episodes of an unroll, and whether it is compressed. Raises
    ConnectionLost if they are not what `describe_unroll` makes."""
    try:
        phases = [float(each) for each in facts["phases"]]
        episodes = [
            Episode(int(step), int(env), float(reward), int(length))
            for step, env, reward, length in facts["episodes"]
        ]
        compressed = bool(facts["compressed"])
    except (TypeError, ValueError, KeyError):
        raise ConnectionLost("what it sent is no unroll") from None
    if len(phases) != len(PHASES):
        raise ConnectionLost("what it sent is no unroll")
    return phases, episodes, compressed


def unroll_bytes(n_steps: int, num_envs: int, spaces: Spaces) -> int:
    """Return the bytes of the arrays of one unroll as they are sent."""
    frame = math.prod(spaces.observation_shape) * np.dtype(spaces.observation_dtype).itemsize
    rest = 8 + 4 * 4 + 2  # actions, four float32, two flags
    return num_envs * (n_steps * (frame + rest) + frame)


def versions() -> dict[str, str | None]:
    """Return the versions that must be equal on all machines of a run."""
    software = describe_software()
    return {
        "rlcb": __version__,
        **{name: software[name] for name in ("torch", "numpy", "procgen", "gymnasium")},
    }


def different_versions(theirs: Any, host: str, here: str) -> str | None:
    """Return the error message if another machine's versions differ from those of this one, else None."""
    theirs = theirs if isinstance(theirs, dict) else {}
    different = [
        f"{name} {theirs.get(name)} on {host}, {version} on {here}"
        for name, version in versions().items()
        if theirs.get(name) != version
    ]
    return f"all machines of a run need the same versions: {'; '.join(different)}" if different else None
