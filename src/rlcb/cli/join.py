"""The command `rlcb join`: let the cores of this machine act for an IMPALA run on another machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rlcb import cpu
from rlcb.cli.command import Parser, count, exit_code, seconds
from rlcb.errors import UsageError

WAIT_SECONDS = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Send actors to a run until it ends; return the exit code."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        description="Send actors of this machine to an IMPALA run on another machine, which was started with "
        "--accept-actors PORT. They may come and go at any time. The run tells them all settings; only the "
        "software must be the same.",
        epilog="Ctrl-C takes the actors away; the run goes on. There is no authentication: use a network "
        "that you trust.",
    )
    parser.add_argument("address", metavar="HOST:PORT", help="where the run's learner listens")
    parser.add_argument(
        "--num-actors",
        type=count,
        metavar="N",
        help="processes that step environments (default: one per core)",
    )
    parser.add_argument(
        "--wait",
        type=seconds,
        default=WAIT_SECONDS,
        metavar="TIME",
        help="how long to wait for the run, at the start and when it is away: 30s, 5m (default: 5m)",
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Take part in the run; return the exit code. Raises UsageError and RunError."""
    from rlcb.parallel.join import join

    address = parse_address(arguments.address)
    num_actors = cpu.usable_cores() if arguments.num_actors is None else arguments.num_actors
    if num_actors < 1:
        raise UsageError(f"--num-actors {num_actors}: must be at least 1")
    return join(address, num_actors, arguments.wait)


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT or [ADDRESS]:PORT. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if ":" in host:
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UsageError(f"{text!r}: expected HOST:PORT, such as gpu1:29600")
    return host, int(port)
