"""How many actors and learners each node of a distributed IMPALA run has, when the settings do not say.

Node 0 takes the numbers of the run that is resumed, or measures which are fastest, and sends its decision to
the other nodes through the store (rendezvous.py), before any rank starts. The store needs torch, so each node
uses it in a child process that ends before the node's workers start:

    node 0:      main process decides -> pipe -> `exchange_decision` -> store
    other node:  store -> `exchange_decision` -> pipe -> main process applies the decision
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.errors import Interrupted, RunError, UsageError, first_line
from rlcb.parallel.calibration import KEYS, START_SECONDS, Calibration, calibrate
from rlcb.parallel.world import World, host_name
from rlcb.processes.child_process import end_child, enter_child, start_child
from rlcb.processes.signals import StopSignal

POLL_SECONDS = 0.1
ERROR_SECONDS = 15.0  # how long node 0 waits for the other nodes to read why it ends

Decision = dict[str, Any]
"""Node 0's message to the other nodes, one of: a number for each of KEYS; {"usage": text} or {"run": text},
the message of a UsageError or RunError; {"signal": number}."""


def is_open(config: Config) -> bool:
    """Return whether the settings leave the number of actors or the number of learners open."""
    return any(getattr(config.impala, key) is None for key in KEYS)


def settle_split(config: Config, known: Config, world: World) -> tuple[Config, Calibration | None]:
    """Return `config` with the numbers of actors and learners that node 0 decides.

    Every node calls it. `config` is equal on all nodes; `known` is the same, except that on node 0 it may
    hold the numbers of a run that is resumed. The second value is node 0's measurement, or None if there was
    none. Raises UsageError or RunError with the same message on all nodes, and Interrupted.
    """
    with StopSignal(repeats=True) as stop:
        if world.num_nodes == 1:
            return decide(known, stop.check)
        context = multiprocessing.get_context("spawn")
        process, connection = start_child(context, exchange_decision, world, config.cluster.timeout_seconds)
        try:
            if world.node_rank == 0:
                return decide_for_all(known, connection, stop.check)
            return apply_decision(config, receive(connection, stop.check)), None
        finally:
            end_child(process, connection)


def decide(config: Config, check_stop: Callable[[], None]) -> tuple[Config, Calibration | None]:
    """Return `config` with measured numbers and the measurement, or unchanged if the numbers are given."""
    if not is_open(config):
        return config, None
    print("Measuring how many actors and learners suit this node: a few seconds", flush=True)
    return calibrate(config, check_stop)


def decide_for_all(
    config: Config, connection: Connection, check_stop: Callable[[], None]
) -> tuple[Config, Calibration | None]:
    """Decide on node 0 and return when all other nodes have read the decision or the error.

    `connection` leads to this node's `exchange_decision`.
    """
    try:
        decided, calibration = decide(config, check_stop)
    except (UsageError, RunError, Interrupted) as error:
        send(connection, error_decision(error))
        connection.poll(ERROR_SECONDS)
        raise
    send(connection, {key: getattr(decided.impala, key) for key in KEYS})
    apply_decision(config, receive(connection, check_stop))  # raises if a node did not come
    return decided, calibration


def error_decision(error: Exception) -> Decision:
    """Return the decision that makes the other nodes raise `error`, with the name of node 0."""
    if isinstance(error, Interrupted):
        return {"signal": error.signal_number}
    if isinstance(error, UsageError):
        return {"usage": str(error)}
    return {"run": f"node 0 ({host_name()}): {error}"}


def send(connection: Connection, decision: Decision) -> None:
    """Send a decision to `exchange_decision`, which may have ended after it reported an error."""
    with contextlib.suppress(OSError):
        connection.send(decision)


def receive(connection: Connection, check_stop: Callable[[], None]) -> Decision:
    """Wait for the decision that `exchange_decision` reports. Raises RunError if its process died."""
    while not connection.poll(POLL_SECONDS):
        check_stop()
    try:
        decision: Decision = connection.recv()
    except EOFError:
        raise RunError(
            "the process that tells nodes the number of actors died; set impala.num_actors and "
            "impala.num_learners"
        ) from None
    return decision


def apply_decision(config: Config, decision: Decision) -> Config:
    """Return `config` with the numbers of a decision, or raise the error that the decision holds."""
    if "usage" in decision:
        raise UsageError(decision["usage"])
    if "run" in decision:
        raise RunError(decision["run"])
    if "signal" in decision:
        raise Interrupted(decision["signal"])
    data = config.model_dump()
    data["impala"] |= {key: decision[key] for key in KEYS}
    return build_config(data, "what node 0 chose")


def exchange_decision(connection: Connection, world: World, timeout_seconds: float) -> None:
    """Carry node 0's decision through the store and report it, or an error, through `connection`.

    The main function of the child process on each node.
    """
    enter_child()
    from rlcb.cluster.rendezvous import MeetingPoint

    try:
        point = MeetingPoint(world, timeout_seconds)
        point.agree_on_start("nodes", world.node_rank, world.num_nodes, lambda: None)
        store = point.connect()
        patience = point.patience + START_SECONDS  # node 0 measures first
        if world.node_rank == 0:
            connection.send(publish(store, connection.recv(), world.num_nodes - 1, patience))
        else:
            connection.send(read_decision(store, world, patience))
    except UsageError as error:
        connection.send({"usage": str(error)})
    except (RunError, RuntimeError) as error:
        connection.send({"run": f"{host_name()}: {first_line(error)}"})


def publish(store: Any, decision: Decision, others: int, patience: float) -> Decision:
    """On node 0, write the decision to the store and wait until the `others` have read it.

    Returns the decision, or an error if they do not read it within `patience` seconds.
    """
    store.set("split", json.dumps(decision))
    deadline = time.monotonic() + patience
    while store.add("split/heard", 0) < others:
        if time.monotonic() > deadline:
            return {"run": f"not all of {others + 1} nodes came within {patience:g} s"}
        time.sleep(POLL_SECONDS)
    return decision


def read_decision(store: Any, world: World, patience: float) -> Decision:
    """On another node, wait for node 0's decision and return it, or an error after `patience` seconds.

    Unless the launcher keeps the store, returns only when node 0 has closed it, so that its ranks can open
    the next one on the same port. Raises what node 0 posts if it refuses to start.
    """
    from rlcb.cluster.rendezvous import raise_refusal

    deadline = time.monotonic() + patience
    while not store.check(["split"]):
        raise_refusal(store)
        if time.monotonic() > deadline:
            return {"run": f"node 0 did not say how many actors there are within {patience:g} s"}
        time.sleep(POLL_SECONDS)
    decision: Decision = json.loads(store.get("split"))
    store.add("split/heard", 1)
    if not world.hosted:
        with contextlib.suppress(RuntimeError):  # the store is closed
            while True:
                store.check(["split"])
                time.sleep(POLL_SECONDS)
    return decision
