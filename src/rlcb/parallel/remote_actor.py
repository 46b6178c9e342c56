"""An IMPALA actor for the learner of another machine: the process that `rlcb join` starts (join.py).

It needs no configuration: the gate of the run (gate.py) sends it. Then, unroll after unroll, it waits for a
permit, overwrites its network with the newest parameters, steps its environments, and sends the unroll,
compressed if that is faster. It lives as long as its connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from rlcb import cpu
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.errors import Interrupted, PeerLost, RunError, UsageError
from rlcb.parallel.heartbeat import Heartbeats
from rlcb.parallel.messages import (
    SILENCE_SECONDS,
    ConnectionLost,
    MessageStream,
    NoSeat,
    RunEnded,
    connect,
    describe_unroll,
    unroll_arrays,
    welcome,
)
from rlcb.parallel.unroll_compression import CompressionChoice, compress
from rlcb.parallel.unroll_writer import UnrollWriter
from rlcb.processes.child_process import enter_child
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.statistics import Episode

POLL_SECONDS = 0.25  # between two looks whether this actor shall stop, while waiting for a permit


class RemoteActor:
    """One actor with its connection to the gate."""

    def __init__(self, stream: MessageStream, heartbeats: Heartbeats, rank: int) -> None:
        """Make environments and network as the gate says. Raises UsageError, NoSeat and ConnectionLost.

        `heartbeats` are those of this machine's actors, `rank` is this one's number among them.
        """
        self.stream, self.heartbeats, self.rank = stream, heartbeats, rank
        told = welcome(stream)
        self.config: Config = build_config(told["config"], "the settings of the run")
        if self.config.hardware.tune_allocator:
            cpu.tune_allocator()
        self.begun: int = told["begun"]
        self._busy = False
        """Whether it writes an unroll."""
        self.writer = UnrollWriter(self.config, told["first_env"])
        spaces, envs = self.writer.spaces, self.config.envs_per_process
        self.choice = CompressionChoice(self.config.impala.compress_unrolls)
        self.unroll = RolloutBuffer(self.config.training.n_steps, envs, spaces)

    def heartbeat(self) -> None:
        """Note progress; raise Interrupted or RunEnded if this actor shall stop. Called at every step."""
        self.heartbeats.check(self.rank)
        if self.stream.send_alive() and self._busy and self.stream.readable(0.0):
            self._hear_last()

    def _hear_last(self) -> None:
        """Read what the gate has sent while this actor wrote an unroll: only the end of the run is possible.
        Raises RunEnded, or ConnectionLost."""
        message = self.stream.receive()
        if "end" in message:
            raise RunEnded(message["end"])
        raise ConnectionLost("it sent something during an unroll")

    def act(self) -> None:
        """Write unrolls until the run or the connection ends.

        Raises Interrupted, RunEnded, ConnectionLost and, for an environment that fails, RunError.
        """
        writer = self.writer
        self.heartbeats.beat(self.rank)
        writer.reset(self.heartbeat)
        if self.begun:
            writer.restart(self.begun)
        spaces = writer.spaces.to_dict()
        self.stream.send({"ready": {"spaces": spaces, "parameters": writer.num_parameters}})
        compresses: bool | None = None  # whether the last unroll was compressed
        seconds = 0.0  # in which it was
        while True:
            with writer.timer("wait"), self.heartbeats.wait_for_others(self.rank):
                permit = self._await_permit()
            if compresses is not None:
                self.choice.note(compresses, seconds + permit["seconds"])
            self._busy = True
            episodes = writer.write(self.unroll, permit["number"])
            self._busy = False
            compresses = self.choice.compresses_next()
            with writer.timer("sync"), self.heartbeats.wait_for_others(self.rank):
                seconds = self._send(episodes, compresses)

    def _send(self, episodes: list[Episode], compresses: bool) -> float:
        """Send the unroll; return the seconds that it took to compress it."""
        arrays, begun = unroll_arrays(self.unroll, self.writer.collector.observations), time.monotonic()
        if compresses:
            arrays = [compress(arrays)]
        seconds = time.monotonic() - begun
        try:
            self.stream.send({"unroll": describe_unroll(self.writer.timer, episodes, compresses)}, arrays)
        except ConnectionLost:
            self._hear_last()
        return seconds

    def _await_permit(self) -> dict[str, Any]:
        """Wait for a permit, overwrite the network if newer parameters come with it, and return it."""
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline:
            self.heartbeat()
            if not self.stream.readable(POLL_SECONDS):
                continue
            message = self.stream.receive()
            deadline = time.monotonic() + SILENCE_SECONDS
            if "refused" in message:
                raise UsageError(str(message["refused"]))
            if "end" in message:
                raise RunEnded(message["end"])
            if "permit" in message:
                if message["permit"]["newer"]:
                    self.stream.receive_arrays([self.writer.parameters.detach().numpy()])
                permit: dict[str, Any] = message["permit"]
                return permit
        raise ConnectionLost(f"silent for {SILENCE_SECONDS:g} s")


def actor_main(connection: Connection, address: tuple[str, int], heartbeats: Heartbeats, rank: int) -> None:
    """Be an actor until the run, the connection or this machine's part in the run ends; then report why.

    The report is a pair: ("ended", status of the run), ("stopped", ""), ("lost", text) if the connection
    ended, ("full", "") if there is no seat, or ("usage" | "run" | "fault", text) if it failed.
    """
    enter_child()
    logging.basicConfig(format="%(levelname)s: %(message)s")
    stream = None
    try:
        stream = connect(address)
        RemoteActor(stream, heartbeats, rank).act()
    except RunEnded as end:
        report = "ended", str(end)
    except (Interrupted, PeerLost):  # the main process ends this machine's part
        report = "stopped", ""
    except NoSeat:
        report = "full", ""
    except (ConnectionLost, OSError) as error:
        report = "lost", str(error)
    except UsageError as error:
        report = "usage", str(error)
    except RunError as error:
        report = "run", str(error)
    except BaseException as error:
        traceback.print_exc()
        report = "fault", f"{type(error).__name__}: {error}"
    if stream is not None:
        stream.close()
    with contextlib.suppress(OSError):  # the machine's part in the run has ended
        connection.send(report)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
