"""The gate of an IMPALA run: threads of the first learner through which actors of other machines take part.

Every connected actor (remote_actor.py) has a thread here and a seat (remote_seats.py). Every machine that
joins (join.py) has one more connection, on which it hears how the run goes on; messages.py has the messages.
An actor whose connection closes or is silent for SILENCE_SECONDS is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from typing import Any

from rlcb.config.config import Config
from rlcb.envs.spaces import Spaces
from rlcb.errors import RunError, UsageError, first_line
from rlcb.parallel.messages import (
    ALIVE_SECONDS,
    SILENCE_SECONDS,
    START_SECONDS,
    ConnectionLost,
    MessageStream,
    RunEnded,
    different_versions,
    unroll_arrays,
    unroll_bytes,
    unroll_facts,
)
from rlcb.parallel.parameter_snapshot import ParameterSnapshot
from rlcb.parallel.remote_seats import RemoteSeats, Seat
from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.unroll_store import UnrollStore

logger = logging.getLogger(__name__)

HELLO_SECONDS = 10.0  # for a new connection to say what it is
REFUSAL_SECONDS = 15.0  # for machines to ask why a run does not start
RETRY_SECONDS = 0.2  # after a connection that could not be accepted
CLOSE_SECONDS = 2.0  # to tell all actors that the run has ended
MAX_NAME = 64
SPARE_CONNECTIONS = 64  # beside two for each seat


class Gate:
    """Accepts actors of other machines. The learner's main thread makes, starts, asks and closes it."""

    def __init__(
        self,
        config: Config,
        spaces: Spaces,
        store: UnrollStore,
        snapshot: ParameterSnapshot,
        queues: tuple[SlotQueue, SlotQueue],
    ) -> None:
        """Open the port. Raises UsageError if that is not possible."""
        self.config, self.spaces = config, spaces
        self.num_parameters = snapshot.copies.shape[1]
        self.seats = RemoteSeats(config, store, snapshot, queues)
        self.tally = self.seats.tally
        self.progress: dict[str, int] = {}
        """What machines that joined are told now and then: updates and timesteps of the run."""
        self.status: str | None = None
        """How the run ended, once it has."""
        self._fault: BaseException | None = None
        self._strangers: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._over, self._close_over = os.pipe()  # can be read from once the gate closes
        self.listener = listen(config.impala.actor_port or 0)
        self.port: int = self.listener.getsockname()[1]

    # --- For the learner ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Let actors in: there are parameters to send."""
        self._spawn(self._accept)

    def check(self) -> None:
        """Raise RunError if a thread of the gate failed."""
        if self._fault is not None:
            kind = type(self._fault).__name__
            raise RunError(f"the gate for remote actors failed: {kind}: {first_line(self._fault)}")

    def describe(self) -> str:
        """Return how to join, for the settings that a run prints."""
        size = self.seats.store.size
        megabytes = unroll_bytes(size.n_steps, size.num_envs, size.spaces) / 1e6
        return (
            f"at most {size.seats}, with rlcb join {self.tally.own_host}:{self.port}; each unroll is "
            f"{megabytes:.1f} MB on the network"
        )

    def news(self) -> list[str]:
        """Return a line for each machine whose actors came or left."""
        with self.seats.lock:
            return self.tally.news()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this update."""
        with self.seats.lock:
            return self.tally.metrics()

    def record(self) -> dict[str, Any]:
        """Return what the run's record and its checkpoints say of actors of other machines."""
        with self.seats.lock:
            return self.tally.record()

    def load(self, record: dict[str, Any]) -> None:
        """Continue from what `record` returned."""
        with self.seats.lock:
            self.tally.load(record)

    def close(self, status: str) -> None:
        """Tell all actors that the run has ended, and close the port. `status`: completed or stopped."""
        if self.status is not None:
            return
        self.status = status
        os.close(self._close_over)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.listener.close()

    # --- Connections -------------------------------------------------------------------------------------

    def _spawn(self, work: Any, *arguments: Any) -> None:
        self._threads = [each for each in self._threads if each.is_alive()]
        thread = threading.Thread(target=self._guarded, args=(work, *arguments), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, work: Any, *arguments: Any) -> None:
        """Call `work`; an unexpected exception ends the run."""
        try:
            work(*arguments)
        except BaseException as error:
            self._fault = error

    def _accept(self) -> None:
        most = 2 * self.config.num_seats + SPARE_CONNECTIONS
        while self.status is None:
            if self.listener.fileno() not in select.select([self.listener.fileno(), self._over], [], [])[0]:
                return
            try:
                connection, address = self.listener.accept()
            except OSError as error:  # the other side has gone, or there are too many open files
                logger.warning("an actor could not connect: %s", error.strerror)
                time.sleep(RETRY_SECONDS)
                continue
            if len(self._threads) > most:
                connection.close()
            else:
                self._spawn(self._serve, MessageStream(connection), address[0].removeprefix("::ffff:"))

    def _serve(self, stream: MessageStream, address: str) -> None:
        """Serve one connection until it or the run ends."""
        try:
            hello = stream.receive(HELLO_SECONDS).get("hello")
            if not isinstance(hello, dict):
                raise ConnectionLost("it did not say hello")
        except ConnectionLost as loss:
            stream.close()
            if address not in self._strangers:  # once, or a port scanner would fill the log
                self._strangers.add(address)
                logger.warning("closed a connection from %s that is no actor: %s", address, loss)
            return
        host = self._name(hello.get("host"))
        try:
            refusal = different_versions(hello.get("versions"), host, self.tally.own_host)
            if refusal is not None:
                stream.say_last({"refused": refusal})
            elif isinstance(hello.get("actors"), int):
                self._serve_node(stream, hello["actors"], host)
            else:
                self._serve_actor(stream, host)
        except ConnectionLost:
            pass  # it left, which the tally tells
        except RunEnded as end:
            stream.say_last({"end": str(end)})
        finally:
            stream.close()

    def _name(self, told: Any) -> str:
        """Return the name of the host of an actor, which differs from this host's."""
        name = "".join(filter(str.isprintable, str(told)))[:MAX_NAME]
        return f"{name} (joined)" if name == self.tally.own_host else name

    def _receive(self, stream: MessageStream, timeout: float) -> dict[str, Any] | None:
        """Return the next message; None after `timeout` seconds. Raises ConnectionLost and RunEnded."""
        if not stream.readable(timeout, self._over):
            if self.status is not None:
                raise RunEnded(self.status)
            return None
        return stream.receive()

    def _expect(self, stream: MessageStream, key: str, timeout: float) -> Any:
        """Return the content of the next message `key` of an actor.

        Raises RunEnded and ConnectionLost, also if there is no sign of life for `timeout` seconds.
        """
        while (message := self._receive(stream, timeout)) is not None:
            if key in message:
                return message[key]
            if "alive" not in message:
                raise ConnectionLost(f"expected {key}")
        raise ConnectionLost(f"silent for {timeout:g} s")

    def _serve_node(self, stream: MessageStream, actors: int, host: str) -> None:
        """Tell a machine what it needs to start its actors, and then how the run goes on."""
        seats = min(actors, self.seats.num_free)
        if seats < 1:
            limit = self.config.num_seats
            stream.say_last({"refused": f"all {limit} seats of the run are taken (impala.max_remote_actors)"})
            return
        stream.send({"welcome": {"config": self.config.model_dump(mode="json"), "seats": seats}})
        while True:
            self._receive(stream, ALIVE_SECONDS)
            with self.seats.lock:
                unrolls, connected = self.tally.unrolls[host], self.tally.connected[host]
            stream.send({"status": {**self.progress, "actors": connected, "unrolls": unrolls}})

    def _serve_actor(self, stream: MessageStream, host: str) -> None:
        """Give an actor a seat, and slots until it leaves."""
        seat = self.seats.take(host)
        if seat is None:
            stream.say_last({"full": True})
            return
        try:
            refusal = self._welcome(stream, seat)
            if refusal is not None:
                stream.say_last({"refused": refusal})
                return
            with self._counted(host):
                while True:
                    self._pass_unroll(stream, seat)
        finally:
            self.seats.leave(seat)

    @contextlib.contextmanager
    def _counted(self, host: str) -> Any:
        """Count an actor of a host while it takes part. Nobody leaves by the end of the run."""
        with self.seats.lock:
            self.tally.add(host, 1)
        try:
            yield
        finally:
            if self.status is None:
                with self.seats.lock:
                    self.tally.add(host, -1)

    def _welcome(self, stream: MessageStream, seat: Seat) -> str | None:
        """Send a new actor the settings, and wait for its environments; return why it is refused, or None."""
        stream.send(
            {
                "welcome": {
                    "config": self.config.model_dump(mode="json"),
                    "first_env": self.seats.first_env(seat),
                    "begun": int(self.seats.store.begun[seat.actor]),
                }
            }
        )
        ready = self._expect(stream, "ready", START_SECONDS)
        ours = {"spaces": self.spaces.to_dict(), "parameters": self.num_parameters}
        if ready != ours:
            return f"the environment on {seat.host} has {ready}, on {self.tally.own_host} {ours}"
        return None

    def _pass_unroll(self, stream: MessageStream, seat: Seat) -> None:
        """Give an actor a free slot and store the unroll that it writes."""
        slot = None
        while slot is None:
            if self._receive(stream, 0.0) is None:
                stream.send_alive()
            rest = seat.rest_until - time.monotonic()
            if rest > 0:
                stream.readable(min(rest, ALIVE_SECONDS), self._over)
            else:
                slot = self.seats.claim(seat)
        number, newest = self.seats.begin(seat, slot)
        permit = {"number": number, "newer": newest is not None, "seconds": seat.seconds}
        stream.send({"permit": permit}, [] if newest is None else [newest])
        phases, episodes, compressed = unroll_facts(self._expect(stream, "unroll", SILENCE_SECONDS))
        arrays, begun = unroll_arrays(seat.unroll, seat.last_observations), time.monotonic()
        size = stream.receive_arrays(arrays, compressed)
        seat.seconds = time.monotonic() - begun
        with self.seats.lock:
            self.tally.count_arrival(size, sum(each.nbytes for each in arrays), compressed)
        self.seats.store_unroll(seat, slot, phases, episodes)


def refuse_all(port: int, text: str, expected: int) -> None:
    """Tell so many machines that would join at `port` why the run does not start; wait for them at most
    REFUSAL_SECONDS. Raises UsageError if the port cannot be opened."""
    deadline = time.monotonic() + REFUSAL_SECONDS
    with listen(port) as listener:
        while expected and select.select([listener], [], [], max(0.0, deadline - time.monotonic()))[0]:
            stream = MessageStream(listener.accept()[0])
            with (
                contextlib.suppress(ConnectionLost),
                contextlib.closing(stream),
            ):  # a stray one does not count
                stream.receive(HELLO_SECONDS)
                stream.say_last({"refused": text})
                expected -= 1


def listen(port: int) -> socket.socket:
    """Return a socket that listens at a port of all interfaces. Raises UsageError."""
    with contextlib.suppress(OSError):  # a system that has IPv6 switched off
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    try:
        return socket.create_server(("", port))
    except OSError as error:
        raise UsageError(
            f"impala.actor_port = {port}: cannot listen there ({error.strerror}); use another port, or 0 for "
            "any free one"
        ) from None
