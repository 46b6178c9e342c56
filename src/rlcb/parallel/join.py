"""Send actors of this machine to the learner of another one: the command `rlcb join`.

The main process keeps a connection to the gate of the run (gate.py), on which it hears how the run goes on,
and starts the actors (remote_actor.py), each with a connection of its own. When the learner is away, it ends
the actors and tries to join again for a while: a resumed run listens at the same port. It never loads torch.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from rlcb import cpu
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.errors import Interrupted, RunError, UsageError
from rlcb.kernels.build import build_ahead
from rlcb.parallel.forkserver import worker_context
from rlcb.parallel.heartbeat import Heartbeats
from rlcb.parallel.messages import (
    SILENCE_SECONDS,
    START_SECONDS,
    ConnectionLost,
    MessageStream,
    NoSeat,
    RunEnded,
    connect,
    welcome,
)
from rlcb.processes.child_process import end_child, start_child
from rlcb.processes.signals import StopSignal
from rlcb.text import counted, duration_text, short

logger = logging.getLogger(__name__)

RETRY_SECONDS = (
    1.0  # between two attempts to reach the learner, and before an actor that was lost comes again
)
PROGRESS_SECONDS = 60.0  # between two lines of progress
POLL_SECONDS = 0.25
LEAVE_SECONDS = 3.0  # for actors to close their environments
COMPLETED = "completed"


def join(address: tuple[str, int], num_actors: int, wait_seconds: float, resumes: bool = True) -> int:
    """Send actors to the run whose learner listens at `address`, until it ends; return the exit code.

    Waits for the learner at most `wait_seconds`, at the start and whenever it is away. Raises UsageError if
    the run refuses this machine, and RunError if the learner stays away, an actor fails too often or, without
    `resumes`, the run is stopped.
    """
    with StopSignal(repeats=not resumes) as stop:
        try:
            while True:
                try:
                    status = take_part(address, num_actors, wait_seconds, stop)
                except ConnectionLost as loss:
                    print(f"Lost the learner at {show(address)}: {loss}", flush=True)
                    continue
                if status == COMPLETED:
                    print(f"The run at {show(address)} is complete", flush=True)
                    return 0
                if not resumes:
                    raise RunError(f"the run at {show(address)} was stopped")
                print(f"The run at {show(address)} was stopped", flush=True)
        except Interrupted as interruption:
            return interruption.exit_code


def show(address: tuple[str, int]) -> str:
    """Return an address as the command line has it: HOST:PORT."""
    return f"{address[0]}:{address[1]}"


def take_part(address: tuple[str, int], num_actors: int, wait_seconds: float, stop: StopSignal) -> str:
    """Join the run at `address`, and return its status when it ends.

    Raises ConnectionLost if the learner goes away, Interrupted, and what `join` raises.
    """
    stream, told = reach(address, num_actors, wait_seconds, stop)
    try:
        config = build_config(told["config"], f"the settings of the run at {show(address)}")
        seats = int(told["seats"])
        if seats < num_actors:
            logger.warning("the run has seats for %d of %s", seats, counted(num_actors, "actor"))
        cpu.prepare_process(1, config.hardware.tune_allocator)
        build_ahead(config)
        node = JoinedNode(address, config, seats)
        try:
            node.start()
            each = counted(config.envs_per_process, "environment")
            print(
                f"Joined {config.env.id} at {show(address)}: {counted(seats, 'actor')} of {each}", flush=True
            )
            return node.watch(stream, stop)
        finally:
            node.end()
    finally:
        stream.close()


def reach(
    address: tuple[str, int], num_actors: int, wait_seconds: float, stop: StopSignal
) -> tuple[MessageStream, dict[str, Any]]:
    """Connect to the learner and return its welcome; try again until `wait_seconds` have passed.

    Raises RunError if it does not answer, UsageError if it refuses this machine, and Interrupted.
    """
    deadline, told = time.monotonic() + wait_seconds, False
    while True:
        try:
            stream = connect(address, num_actors)
            try:
                limit = time.monotonic() + START_SECONDS  # a run that is starting does not answer yet
                while not stream.readable(POLL_SECONDS) and time.monotonic() < limit:
                    stop.check()
                return stream, welcome(stream, SILENCE_SECONDS)
            except BaseException:
                stream.close()
                raise
        except (OSError, ConnectionLost, RunEnded, NoSeat) as error:
            if time.monotonic() > deadline:
                raise RunError(
                    f"no run answered at {show(address)} within {duration_text(wait_seconds)} ({error})"
                ) from None
            if not told:
                print(f"Waiting for a run at {show(address)} ({error})", flush=True)
                told = True
        stop.sleep(RETRY_SECONDS)


@dataclass
class JoinedActor:
    """An actor process as this machine's main process sees it."""

    process: Any
    connection: Connection
    due: float | None = None
    """When the next process takes its place, once it has ended, in seconds of time.monotonic()."""


def be_actor(connection: Connection, address: tuple[str, int], heartbeats: Heartbeats, rank: int) -> None:
    """Run an actor process; only such a process imports what it needs, which loads torch."""
    from rlcb.parallel.remote_actor import actor_main

    actor_main(connection, address, heartbeats, rank)


class JoinedNode:
    """The actors of this machine in one run, for as long as one connection to the learner lasts."""

    def __init__(self, address: tuple[str, int], config: Config, num_actors: int) -> None:
        self.address, self.config = address, config
        self.context = worker_context(config.env.id)
        self.heartbeats = Heartbeats(self.context, num_actors)
        self.num_actors = num_actors
        self.actors: list[JoinedActor] = []
        self.failures = 0
        """Actors that failed and were replaced."""
        self.ended: str | None = None
        """The status of the run, once it has ended."""

    def start(self) -> None:
        for rank in range(self.num_actors):
            self.actors.append(self._start_actor(rank))

    def _start_actor(self, rank: int) -> JoinedActor:
        self.heartbeats.begin(rank)
        arguments = self.address, self.heartbeats, rank
        name = f"actor-{rank}"
        return JoinedActor(*start_child(self.context, be_actor, *arguments, name=name))

    def watch(self, stream: MessageStream, stop: StopSignal) -> str:
        """Watch actors and learner until the run ends; return its status.

        Raises ConnectionLost, Interrupted, and UsageError or RunError for an actor that fails.
        """
        heard, shown = time.monotonic(), time.monotonic()
        while self.ended is None:
            stop.check()
            living = [each.connection for each in self.actors if each.due is None]
            wait([stream.socket, *living], timeout=POLL_SECONDS)
            if stream.readable(0.0):
                message = stream.receive()
                heard = time.monotonic()
                if "end" in message:
                    return str(message["end"])
                if time.monotonic() - shown > PROGRESS_SECONDS:
                    shown = time.monotonic()
                    print(describe_status(message.get("status") or {}), flush=True)
            elif time.monotonic() - heard > SILENCE_SECONDS:
                raise ConnectionLost(f"silent for {SILENCE_SECONDS:g} s")
            for rank, actor in enumerate(self.actors):
                self._look_after(rank, actor)
        return self.ended

    def _look_after(self, rank: int, actor: JoinedActor) -> None:
        """Read what an actor reports, and start another one in the place of one that has ended."""
        now = time.monotonic()
        if actor.due is not None:
            if now > actor.due:
                self.actors[rank] = self._start_actor(rank)
            return
        config = self.config
        cluster = config.mode == "distributed"
        timeout = config.cluster.timeout_seconds if cluster else config.parallel.timeout_seconds
        if rank in self.heartbeats.hanging(timeout):
            self._note_failure(f"actor {rank} made no progress for {timeout:g} s")
        elif actor.connection.poll() or not actor.process.is_alive():
            self._read_report(rank, actor)
        else:
            return
        end_child(actor.process, actor.connection)
        actor.due = now + RETRY_SECONDS

    def _read_report(self, rank: int, actor: JoinedActor) -> None:
        """Read why an actor ends. Raises UsageError, or RunError if too many actors have failed."""
        try:
            kind, text = actor.connection.recv()
        except (EOFError, OSError):
            actor.process.join()
            kind, text = "run", f"ended with exit code {actor.process.exitcode}"
        if kind == "usage":
            raise UsageError(text)
        if kind == "ended":
            self.ended = text
        elif kind not in ("lost", "full"):
            self._note_failure(f"actor {rank}: {text}")

    def _note_failure(self, text: str) -> None:
        limit = self.config.impala.max_actor_restarts
        if self.failures >= limit:
            raise RunError(
                f"{text}; {self.failures} actors had been replaced before (impala.max_actor_restarts)"
            )
        self.failures += 1
        logger.warning("%s; replaced by a new one (%d of %d)", text, self.failures, limit)

    def end(self) -> None:
        """End the actors: ask them to leave, then kill those that are left."""
        self.heartbeats.abort()
        deadline = time.monotonic() + LEAVE_SECONDS
        for actor in self.actors:
            actor.process.join(max(0.0, deadline - time.monotonic()))
            end_child(actor.process, actor.connection)


def describe_status(status: dict[str, Any]) -> str:
    """Return one line of progress from what the gate tells."""
    updates, timesteps, actors, unrolls = (
        int(status.get(key, 0)) for key in ("updates", "timesteps", "actors", "unrolls")
    )
    here = f"{counted(actors, 'actor')} and {counted(unrolls, 'unroll')} from here"
    return f"update {updates:,} · {short(timesteps)} timesteps · {here}"
