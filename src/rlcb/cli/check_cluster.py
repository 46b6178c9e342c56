"""The command `rlcb check-cluster`: measure the nodes and the network of a cluster before training."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import replace

from rlcb.cli.command import Parser, exit_code, seconds
from rlcb.cli.train_distributed import add_place_flags, cluster_settings, end_process
from rlcb.cluster.launch import discover
from rlcb.config.settings import ClusterConfig
from rlcb.errors import UsageError

DESCRIPTION = """\
Measure all nodes and the network between them before training.

Start one process on each node, in the same way as a training: with srun, with torchrun, or by hand.

    srun --nodes 4 --ntasks-per-node 1 venv/bin/rlcb check-cluster
    venv/bin/rlcb check-cluster --num-nodes 2 --node-rank 0 --master-addr 10.0.0.1

Rank 0 prints one line per rank (network interface, usable cores, speed and clock rate of a core, round trip
to rank 0, bandwidth from rank 0, clock offset), the time of an all-reduce over all ranks, and a warning for
each slow node and each wrong clock. The check takes a few seconds and writes no files.
"""
SMALLEST_MEGABYTES = 0.001


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in this process and end the process with its exit code."""
    return end_process(exit_code(lambda: run(make_parser().parse_args(argv))))


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        prog="rlcb check-cluster",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_place_flags(parser)
    parser.add_argument(
        "--network-interface",
        dest="cluster.network_interface",
        metavar="NAME",
        help="interface to measure (default: the one whose address reaches node 0)",
    )
    parser.add_argument(
        "--megabytes", type=float, default=16.0, metavar="X", help="size of a transfer (default: 16)"
    )
    parser.add_argument(
        "--timeout-seconds",
        dest="cluster.timeout_seconds",
        type=seconds,
        default=60.0,
        metavar="TIME",
        help="end the check when a rank is silent for this long: 90s, 2m, or seconds (default: 60)",
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Measure the cluster from this process and return 0. Raises UsageError, RunError."""
    if not SMALLEST_MEGABYTES <= arguments.megabytes < math.inf:
        raise UsageError(f"--megabytes {arguments.megabytes:g}: must be at least {SMALLEST_MEGABYTES:g}")
    given = {key.removeprefix("cluster."): value for key, value in vars(arguments).items()}
    fields = {key: value for key, value in given.items() if key in ClusterConfig.model_fields}
    config = cluster_settings({"cluster": fields})
    world = discover(config, arguments.node_rank, os.environ)
    if world.local_rank is None:
        world = replace(world, num_workers=1, local_rank=0, node_sizes=(), complete=True)
    from rlcb.cluster.check import check_cluster  # loads torch

    check_cluster(world, config, arguments.megabytes)
    return 0


if __name__ == "__main__":
    main()
