"""How many actors and learners each node of a distributed run of IMPALA has, if that is not given: node 0
knows it from the run that goes on, or measures it, and tells the others.

They hear it at the store where the ranks meet later. That takes torch, so a process of its own does it on
each node, which ends before the node's ranks begin.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.errors import Interrupted, RunError, UsageError, first_line
from rlcb.parallel.calibration import KEYS, START_SECONDS, Calibration, calibrate
from rlcb.parallel.worker import end_with_parent
from rlcb.parallel.world import World, host_name
from rlcb.processes.signals import StopSignal

POLL_SECONDS = 0.1
TELL_SECONDS = 15.0  # for the other nodes to come and hear why node 0 ends

Split = dict[str, Any]
"""A number for each of KEYS; or `usage` or `run` with the words of an error; or `signal` with its number."""


def is_open(config: Config) -> bool:
    """Whether the number of actors or that of learners is not given."""
    return any(getattr(config.impala, key) is None for key in KEYS)


def settle_split(config: Config, known: Config, world: World) -> tuple[Config, Calibration | None]:
    """The configuration with the numbers that node 0 decides, and what they were measured by, if they were.

    `config` is the same on all nodes and open; `known` is what node 0 makes of it, which may have them from
    the run that is resumed. Raises UsageError or RunError, with the same words on all nodes, and Interrupted.
    """
    with StopSignal(repeats=True) as stop:
        if world.num_nodes == 1:
            return decide(known, stop.check)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=talk, args=(world, config.cluster.timeout_seconds, theirs), daemon=True
        )
        with StopSignal.blocked():
            process.start()
        theirs.close()
        try:
            if world.node_rank == 0:
                return tell(known, ours, stop.check)
            return settled(config, listen(ours, stop.check)), None
        finally:
            process.kill()
            process.join()


def decide(config: Config, check_stop: Callable[[], None]) -> tuple[Config, Calibration | None]:
    if not is_open(config):
        return config, None
    print("Measuring how many actors and learners suit this node: a few seconds", flush=True)
    return calibrate(config, check_stop)


def tell(
    config: Config, connection: Connection, check_stop: Callable[[], None]
) -> tuple[Config, Calibration | None]:
    """On node 0: decide, and wait until all others have heard it, even if it is an error."""
    try:
        decision = decide(config, check_stop)
    except (UsageError, RunError, Interrupted) as error:
        say(connection, in_words(error))
        connection.poll(TELL_SECONDS)
        raise
    say(connection, {key: getattr(decision[0].impala, key) for key in KEYS})
    settled(config, listen(connection, check_stop))
    return decision


def in_words(error: Exception) -> Split:
    if isinstance(error, Interrupted):
        return {"signal": error.signal_number}
    if isinstance(error, UsageError):
        return {"usage": str(error)}
    return {"run": f"node 0 ({host_name()}): {error}"}


def say(connection: Connection, split: Split) -> None:
    with contextlib.suppress(OSError):  # who is to pass it on has ended, and has said why
        connection.send(split)


def listen(connection: Connection, check_stop: Callable[[], None]) -> Split:
    """What the process that talks to the other nodes reports."""
    while not connection.poll(POLL_SECONDS):
        check_stop()
    try:
        answer: Split = connection.recv()
    except EOFError:
        raise RunError(
            "the process that tells nodes the number of actors died; set impala.num_actors and "
            "impala.num_learners"
        ) from None
    return answer


def settled(config: Config, split: Split) -> Config:
    """The configuration with these numbers. Raises what is told instead of them."""
    if "usage" in split:
        raise UsageError(split["usage"])
    if "run" in split:
        raise RunError(split["run"])
    if "signal" in split:
        raise Interrupted(split["signal"])
    data = config.model_dump()
    data["impala"] |= {key: split[key] for key in KEYS}
    return build_config(data, "what node 0 chose")


def talk(world: World, timeout_seconds: float, connection: Connection) -> None:
    """In a process of its own: bring what node 0 has decided to all nodes, and report it on each."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    StopSignal.ignore()
    from rlcb.cluster.rendezvous import MeetingPoint

    try:
        point = MeetingPoint(world, timeout_seconds)
        point.agree_on_start("nodes", world.node_rank, world.num_nodes, lambda: None)
        store = point.connect()
        patience = point.patience + START_SECONDS  # for node 0 to measure
        if world.node_rank == 0:
            connection.send(announce(store, connection.recv(), world.num_nodes - 1, patience))
        else:
            connection.send(hear(store, world, patience))
    except UsageError as error:
        connection.send({"usage": str(error)})
    except (RunError, RuntimeError) as error:
        connection.send({"run": f"{host_name()}: {first_line(error)}"})


def announce(store: Any, split: Split, others: int, patience: float) -> Split:
    """On node 0: let all others read `split`."""
    store.set("split", json.dumps(split))
    deadline = time.monotonic() + patience
    while store.add("split/heard", 0) < others:
        if time.monotonic() > deadline:
            return {"run": f"not all of {others + 1} nodes came within {patience:g} s"}
        time.sleep(POLL_SECONDS)
    return split


def hear(store: Any, world: World, patience: float) -> Split:
    """On another node: read what node 0 has decided; then wait until its store, unless the launcher keeps
    it, has made room for that of the ranks. Raises what node 0 turns away all with, if it does."""
    from rlcb.cluster.rendezvous import require_welcome

    deadline = time.monotonic() + patience
    while not store.check(["split"]):
        require_welcome(store)
        if time.monotonic() > deadline:
            return {"run": f"node 0 did not say how many actors there are within {patience:g} s"}
        time.sleep(POLL_SECONDS)
    split: Split = json.loads(store.get("split"))
    store.add("split/heard", 1)
    if not world.hosted:
        try:
            while True:
                store.check(["split"])
                time.sleep(POLL_SECONDS)
        except RuntimeError:  # it is gone
            pass
    return split
