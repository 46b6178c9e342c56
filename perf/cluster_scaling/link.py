"""Hosts that are network namespaces of this machine, joined by links of a given rate and delay.

Without a delay the hosts hang on a switch, each by a cable that the kernel limits (`tc ... tbf`). Kernels may
lack the means to delay packets (`netem`), so hosts with a delay between them are joined by a program
(perf/cluster_scaling/cable.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from rlcb.paths import PROJECT
from tests.cluster_runs import call, missing_for_namespaces, remove_hosts

LINK = "wire"  # the name of the device in every namespace
NETWORK = "10.98.9"
PREFIX = "rlcs"  # of the names of all that is made here; the number of the process follows

START_SECONDS = 10.0

RATES = {"10mbit": 1e7, "100mbit": 1e8, "1gbit": 1e9}
"""Links, as tc writes them, and their bits per second."""
SHAPES = {1e8: ("8000", "70ms"), 1e7: ("2500", "250ms")}
"""For slow links by bits per second: bytes that pass at once after a pause, and how long packets may wait, in
words of tc. Few bytes, or all of a short message would pass; a wait so long that no part of a long one is
lost."""


@dataclass(frozen=True)
class Hosts:
    """Namespaces by name ("" is this machine itself), their addresses, the device between them."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    device: str

    def enter(self, host: int) -> list[str]:
        """Return the words that make a command run on a host."""
        name = self.names[host]
        return ["ip", "netns", "exec", name] if name else []


def require_namespaces() -> None:
    """Exit with a line that says what is missing."""
    missing = missing_for_namespaces()
    if missing is not None:
        sys.exit(f"perf.cluster_scaling: {missing}")


@contextlib.contextmanager
def hosts(count: int, rate: float, delay: float = 0.0) -> Iterator[Hosts]:
    """`count` hosts with links of `rate` bits per second (infinite: no limit) and `delay` seconds one way.

    They are gone at the exit, whatever happens inside.
    """
    remove_stale()
    names = tuple(f"{PREFIX}-{os.getpid()}-{number}" for number in range(count))
    switch = f"{PREFIX}-{os.getpid()}-switch"
    addresses = tuple(f"{NETWORK}.{number + 1}" for number in range(count))
    with contextlib.ExitStack() as stack:
        stack.callback(remove_hosts, (*names, switch))
        for name in names:
            call("ip", "netns", "add", name)
            call("ip", "-n", name, "link", "set", "lo", "up")
        if delay:
            stack.enter_context(_joined_by_program(names, rate, delay))
        else:
            _join_by_switch(switch, names, rate)
        for name, address in zip(names, addresses):
            call("ip", "-n", name, "address", "add", f"{address}/24", "dev", LINK)
            call("ip", "-n", name, "link", "set", LINK, "up")
        yield Hosts(names, addresses, LINK)


def remove_stale() -> None:
    """Remove the namespaces of processes that were killed before they could."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")]
    remove_hosts(tuple(name for name in names if not psutil.pid_exists(int(name.split("-")[1]))))


def this_machine(count: int) -> Hosts:
    """`count` "hosts" that are this machine, over its loopback interface."""
    return Hosts(("",) * count, ("127.0.0.1",) * count, "lo")


def _join_by_switch(switch: str, names: tuple[str, ...], rate: float) -> None:
    call("ip", "netns", "add", switch)
    call("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
    call("ip", "-n", switch, "link", "set", "switch", "up")
    for number, name in enumerate(names):
        port = f"port{number}"
        ends = (LINK, "netns", name, "type", "veth", "peer", "name", port, "netns", switch)
        call("ip", "link", "add", *ends)
        call("ip", "-n", switch, "link", "set", port, "master", "switch", "up")
        if math.isfinite(rate):
            # A burst of a tenth of a millisecond, but no less than the largest packet, which would be cut up.
            burst, latency = SHAPES.get(rate) or (str(max(66_000, int(rate / 8 * 1e-4))), "50ms")
            words = ("tbf", "rate", f"{rate:.0f}bit", "burst", burst, "latency", latency)
            call("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", LINK, "root", *words)


@contextlib.contextmanager
def _joined_by_program(names: tuple[str, ...], rate: float, delay: float) -> Iterator[None]:
    devices = [f"{PREFIX}{os.getpid()}{chr(97 + number)}" for number in range(len(names))]
    words = [sys.executable, "-m", "perf.cluster_scaling.cable", *devices]
    words += ["--rate", str(rate), "--delay", str(delay)]
    program = subprocess.Popen(words, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        if program.stdout.readline().strip() != "ready":
            raise RuntimeError("the program that joins two hosts did not start")
        for device, name in zip(devices, names):
            call("ip", "link", "set", device, "netns", name, "name", LINK)
        yield
        if program.poll() is not None:
            raise RuntimeError(f"the program that joins two hosts ended with {program.returncode}")
    finally:
        program.terminate()
        program.wait(START_SECONDS)
        assert program.stdout is not None
        program.stdout.close()
