"""Starting distributed runs as users do: under torchrun, by hand, on hosts that are network namespaces."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlcb.kernels.build import KernelsUnavailable, find_compiler
from tests import rank_env, runs

LINK_B = "veth-b"
PPO = "train_ppo_distributed.py"
IMPALA = "train.py --algorithm impala --mode distributed"
# Endless and tiny; a test gives a budget or a fault.
TINY = (
    *("--env", rank_env.ID, "--num-envs", 4, "--n-steps", 8, "--n-epochs", 1, "--batch-size", 16),
    *("--set", "logging.tensorboard=false", "--total-timesteps", 1e7),
)


def require_real(missing: str | None) -> None:
    """Skip a test that lacks a real component, or fail where REQUIRE_REAL_COMPONENTS says it is there."""
    if missing is None:
        return
    if os.environ.get("REQUIRE_REAL_COMPONENTS") == "1":
        pytest.fail(f"{missing}, but REQUIRE_REAL_COMPONENTS=1")
    pytest.skip(missing)


def require_compiler() -> None:
    """Require a C++ compiler, which native kernels need."""
    try:
        find_compiler()
    except KernelsUnavailable as error:
        require_real(str(error))


PORTS = range(15_000, 30_000)  # below those that systems give to connections by themselves
_given = itertools.count(os.getpid() * 7)


def free_port() -> int:
    """A port that nobody listens on, which no connection takes before it is used, and of which this process
    has not been told before."""
    for number in itertools.islice(_given, len(PORTS)):
        port = PORTS[number % len(PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise AssertionError("no port is free")


def own_address() -> str:
    """An address of this machine other than loopback."""
    for name, found in psutil.net_if_addrs().items():
        for each in found:
            if (
                each.family == socket.AF_INET
                and not each.address.startswith("127.")
                and psutil.net_if_stats()[name].isup
            ):
                return each.address
    require_real("this machine has no address but loopback")
    raise AssertionError


def torchrun(script: str, *arguments: object, ranks: int = 2, restarts: int = 0) -> list[str]:
    """Return torchrun's command for `ranks` processes on one node; `script` may carry flags itself."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks)
    place = ("--master-addr", "127.0.0.1", "--master-port", free_port(), "--max-restarts", restarts)
    return [str(each) for each in (*launcher, *place, *script.split(), *arguments)]


def agents(
    address: str,
    script: str,
    *arguments: object,
    c10d: bool = False,
    restarts: int = 0,
    sizes: tuple[int, int] = (1, 1),
) -> list[list[str]]:
    """Return the commands of torchrun's agents on two nodes, which start `sizes` processes. `script` may
    carry flags itself."""
    port, commands = free_port(), []
    for node, size in enumerate(sizes):
        place: tuple[object, ...] = (
            *("--nnodes", 2, "--node-rank", node, "--master-addr", address, "--master-port", port),
        )
        if c10d:
            first = str(node == 0).lower()  # else it is told by comparing host names, which are equal here
            place = ("--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:{port}")
            place += ("--rdzv-id", port, "--rdzv-conf", f"is_host={first}", "--local-addr", address)
        launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", size)
        words = (*launcher, *place, "--max-restarts", restarts, *script.split(), *arguments)
        commands.append([str(word) for word in words])
    return commands


def fault(**kwargs: object) -> tuple[object, ...]:
    return tuple(part for key, value in kwargs.items() for part in ("--set", f"env.kwargs.{key}={value}"))


def start(command: list[str], **environment: object) -> subprocess.Popen[str]:
    """Start a command whose output is read when it ends."""
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    return subprocess.Popen(
        command,
        cwd=runs.PROJECT,
        env={**surroundings, **{key: str(value) for key, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Nodes:
    """Node processes of one run, started by hand on this machine or in namespaces; all ended at the exit."""

    def __init__(self, address: str, namespaces: tuple[str, ...] = ("", "")) -> None:
        self.place = ("--num-nodes", len(namespaces), "--master-addr", address, "--master-port", free_port())
        self.namespaces = namespaces
        self.processes: list[subprocess.Popen[str]] = []

    def train(self, script: str, *arguments: object) -> list[tuple[int, str, str]]:
        """Train to the end, the last node in this process (runs.call); return what `wait` returns."""
        self.start(script, *arguments, nodes=len(self.namespaces) - 1)
        last = runs.call(script, *arguments, *self.place, "--node-rank", len(self.namespaces) - 1)
        return [*self.wait(120), (last.returncode, last.stdout, last.stderr)]

    def start(self, script: str, *arguments: object, nodes: int | None = None) -> None:
        """Start the first `nodes` nodes, by default all."""
        for node, namespace in enumerate(self.namespaces[:nodes]):
            inside = ["ip", "netns", "exec", namespace] if namespace else []
            words = runs.command(script, *arguments, *self.place, "--node-rank", node)
            self.processes.append(start([*inside, *words], TEST_RANK=node))

    def start_agents(self, commands: list[list[str]]) -> None:
        self.processes += [start(command) for command in commands]

    def wait(self, timeout: float) -> list[tuple[int, str, str]]:
        """(exit code, stdout, stderr) by node."""
        ended = []
        for process in self.processes:
            output, errors = process.communicate(timeout=timeout)
            ended.append((process.returncode, output, errors))
        return ended

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def call(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=20)


@contextlib.contextmanager
def two_hosts(
    rate: str = "1gbit", burst: str = "256kb", latency: str = "50ms"
) -> Iterator[tuple[tuple[str, str], str]]:
    """Two network namespaces joined by a link of `rate`; gives their names and the first one's address.

    After a pause, the link lets `burst` pass at once; what would wait longer than `latency` is lost. Rate,
    burst and latency are words of tc.
    """
    require_real(missing_for_namespaces())
    names, links = (f"rlcb-{os.getpid()}-a", f"rlcb-{os.getpid()}-b"), ("veth-a", LINK_B)
    try:
        for name in names:
            call("ip", "netns", "add", name)
        ends = (links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        call("ip", "link", "add", *ends)
        for number, (name, link) in enumerate(zip(names, links), 1):
            call("ip", "-n", name, "address", "add", f"10.98.7.{number}/24", "dev", link)
            for each in ("lo", link):
                call("ip", "-n", name, "link", "set", each, "up")
            shape = ("tbf", "rate", rate, "burst", burst, "latency", latency)
            call("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", link, "root", *shape)
        yield names, "10.98.7.1"
    finally:
        remove_hosts(names)


def cut(names: tuple[str, str]) -> None:
    """Pull the cable between the two hosts: no packet passes, and no connection is told."""
    call("ip", "-n", names[1], "link", "set", LINK_B, "down")


def missing_for_namespaces() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"network namespaces need {program} (iproute2)"
    name = f"rlcb-{os.getpid()}-probe"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"network namespaces cannot be made: {probe.stderr.strip()}"
    remove_hosts((name,))
    return None


def remove_hosts(names: tuple[str, ...]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, timeout=20)


def assert_nothing_left(folder: Path) -> None:
    """Assert that no process of a run is left."""
    left = [" ".join(each.cmdline()[:4]) for each in runs.processes_of(folder)]
    assert left == []
