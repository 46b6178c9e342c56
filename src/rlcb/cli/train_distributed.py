"""Distributed training: from the command line of one process, and its place in the run, to training."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from pydantic import ValidationError

from rlcb.cli import flags
from rlcb.cli.command import Parser, count, exit_code
from rlcb.cli.distributed_folder import (
    open_folder,
    output_dir,
    require_startable,
    with_previous_split,
)
from rlcb.cli.flags import Flag
from rlcb.cli.prepared_run import prepare_run
from rlcb.cli.train_elastic import run_elastic
from rlcb.cluster.actor_split import is_open, settle_split
from rlcb.cluster.launch import as_starter, discover
from rlcb.cluster.network import require_place
from rlcb.cluster.node_sizes import complete_world
from rlcb.config.config import Config
from rlcb.config.settings import ClusterConfig
from rlcb.config.sourced import SourcedSettings, source_in
from rlcb.config.validation import describe_validation_error
from rlcb.config.yaml_file import build_config, set_value
from rlcb.errors import Interrupted, UsageError
from rlcb.parallel.world import World, host_name
from rlcb.processes.signals import StopSignal
from rlcb.processes.socket_folder import remove_socket_folder
from rlcb.text import counted
from rlcb.training.run_folder import CONFIG_FILE, config_of_run

MODE = "distributed"
SIZE_KEYS = ("num_nodes", "num_workers", "node_workers")  # of the section cluster
PLACE_FLAGS = (
    Flag("--num-nodes", "cluster.num_nodes", count, "number of machines"),
    Flag("--master-addr", "cluster.master_addr", str, "host name or address of node 0"),
    Flag("--master-port", "cluster.master_port", count, "a free port of node 0"),
)


def make_parser(algorithm: str, any_algorithm: bool = False) -> Parser:
    """Return the parser of distributed training, with `--algorithm` and `--mode` if `any_algorithm`."""
    parser = flags.make_parser(algorithm, MODE, timed=None if any_algorithm else False)
    add_place_flags(parser)
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="IMPALA: node 0 learns, all others act for it, and may die, leave and come at any time",
    )
    return parser


def add_place_flags(parser: Parser) -> None:
    """Add the flags that tell a process started by hand which node it is and how many there are."""
    group = parser.add_argument_group(
        "nodes",
        "Start one process on each node, with all of these flags if you start it by hand. torchrun and srun "
        "set the values themselves.",
    )
    group.add_argument("--node-rank", type=count, metavar="RANK", help="number of this node, from 0")
    for flag in PLACE_FLAGS:
        metavar = flag.name.rpartition("-")[2].upper()
        group.add_argument(flag.name, dest=flag.key, type=flag.type, metavar=metavar, help=flag.help)


def main(algorithm: str, argv: Sequence[str] | None = None, any_algorithm: bool = False) -> int:
    """Run distributed training in one of its processes; return the exit code.

    `any_algorithm` is true for `rlcb train`, which also takes `--algorithm` and `--mode`.
    """
    code = exit_code(lambda: run(make_parser(algorithm, any_algorithm).parse_args(argv), algorithm))
    return end_process(code) if "torch.distributed" in sys.modules else code


def end_process(code: int) -> NoReturn:
    """End this process with exit code `code`, without the clean-up of torch.distributed.

    That clean-up would wait for peers, which may be gone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    remove_socket_folder()
    os._exit(code)


def run(arguments: argparse.Namespace, algorithm: str) -> int:
    """Train as one rank, or start this node's workers and wait for them; return the exit code.

    Raises UsageError and RunError.
    """
    data = settings(arguments, algorithm)
    cluster = cluster_settings(data)
    if algorithm == "impala" and cluster.elastic:
        return run_elastic(arguments, data, as_starter(discover(cluster, arguments.node_rank, os.environ)))
    try:
        world = find_place(data, cluster, arguments)
    except Interrupted as interruption:
        return interruption.exit_code
    apply_world(data, arguments, world)
    given = build_config(data)
    folder, resume = open_folder(arguments, given, world)
    try:
        config = with_previous_split(given, arguments, world)
        require_startable(folder, arguments, config, world)
    except UsageError as error:
        tell_peers(given, world, str(error))
        raise
    spec = prepare_run(arguments, config, folder, resume)
    if world.local_rank is not None:
        from rlcb.cluster.rank import train_as_rank

        return train_as_rank(spec, world)
    from rlcb.parallel.supervisor import train_on_node

    calibration = None
    if given.has_actors:
        if is_open(given):
            try:
                config, calibration = settle_split(given, config, world)
            except Interrupted as interruption:
                return interruption.exit_code
        world = replace(world, num_workers=config.learners_per_node)
    if world.node_rank > 0:
        print(describe_node(config, world), flush=True)
    return train_on_node(replace(spec, config=config), node_worker_module(config), world, calibration)


def find_place(data: SourcedSettings, cluster: ClusterConfig, arguments: argparse.Namespace) -> World:
    """Return this process's place in the run, after the nodes have told each other what their launcher did
    not. Raises UsageError, RunError, Interrupted."""
    world = discover(cluster, arguments.node_rank, os.environ)
    if data["algorithm"] == "impala":
        world = as_starter(world)
    require_place(world, cluster.network_interface)
    if world.complete:
        return world
    require_valid(data, arguments)
    with StopSignal(repeats=True) as stop:
        return complete_world(world, cluster.timeout_seconds, stop.check)


def node_worker_module(config: Config) -> str:
    """The module whose `work` the workers of a node call. Only they import it: it loads torch."""
    return "rlcb.cluster.impala_workers" if config.has_actors else "rlcb.cluster.rank"


def tell_peers(config: Config, world: World, text: str) -> None:
    """End the processes that wait for this one, on node 0, with the error message `text`."""
    if world.num_nodes == 1 and world.local_rank is None:
        return  # this process has no peers: it starts all workers itself
    print("Telling the other processes why this run does not start", flush=True)
    from rlcb.cluster.rendezvous import refuse_peers

    purpose = "ranks"
    if config.has_actors and is_open(config):
        purpose = "nodes"
    elif config.has_actors:
        world = replace(world, num_workers=config.learners_per_node)
    refuse_peers(world, purpose, config.cluster.timeout_seconds, text)


def describe_node(config: Config, world: World) -> str:
    """Return one line that says which ranks and actors this node starts and where rank 0 is."""
    actors = f" and {counted(config.actors_per_node, 'actor')}" if config.has_actors else ""
    return (
        f"Node {world.node_rank} ({host_name()}) starts ranks {world.first_rank} to "
        f"{world.first_rank + world.num_workers - 1} of {world.size}{actors}; rank 0 is at "
        f"{world.master_addr}:{world.master_port}"
    )


def settings(arguments: argparse.Namespace, algorithm: str) -> SourcedSettings:
    """Return the settings of file and flags as nested dictionaries. Raises UsageError."""
    from_run = arguments.resume == "yes" and arguments.config is None
    if from_run:
        root = output_dir(arguments, "--resume")
        data = SourcedSettings.of(config_of_run(root).model_dump(mode="json"), str(root / CONFIG_FILE))
    else:
        data = flags.read_settings(arguments)
    flags.apply_flags(data, arguments)
    given = vars(arguments)
    for flag in PLACE_FLAGS:
        if given[flag.key] is not None:
            set_value(data, flag.key, given[flag.key], flag.name)
    if arguments.elastic:
        set_value(data, "cluster.elastic", True, "--elastic")
    if arguments.num_workers is not None and algorithm != "impala":  # `apply_world` refuses it for IMPALA
        set_value(data, "cluster.num_workers", arguments.num_workers, "--num-workers")
        set_value(data, "cluster.node_workers", None, "--num-workers")
    if not from_run:  # a resumed run keeps its budget
        flags.apply_budget(data, arguments)
    return data


def cluster_settings(data: Mapping[str, Any]) -> ClusterConfig:
    """Return the validated section `cluster` of `data`. Raises UsageError."""
    try:
        return ClusterConfig.model_validate(data.get("cluster") or {})
    except ValidationError as error:
        source = source_in(data)
        problem = describe_validation_error(error, ClusterConfig, lambda key: source(f"cluster.{key}"))
        raise UsageError(f"cluster: {problem}") from None


def require_valid(data: SourcedSettings, arguments: argparse.Namespace) -> None:
    """Raise UsageError for settings that are wrong with any number of workers, before the nodes meet."""
    if arguments.num_envs_per_worker is None:  # which sets the number of environments
        alone = {**data, "cluster": {**(data.get("cluster") or {}), **dict.fromkeys(SIZE_KEYS)}}
        build_config(SourcedSettings(alone, data.sources))


def apply_world(data: SourcedSettings, arguments: argparse.Namespace, world: World) -> None:
    """Write the numbers of nodes, workers or actors, and environments into the settings.

    Raises UsageError if the flags contradict each other.
    """
    known = data.source("cluster.num_nodes") or "this start"
    set_value(data, "cluster.num_nodes", world.num_nodes, known)
    if data["algorithm"] == "impala":
        flags.apply_actors(data, arguments, world.num_nodes)
        return
    equal = len({*world.sizes}) == 1
    for key, value in (
        ("cluster.num_workers", world.num_workers if equal else None),
        ("cluster.node_workers", None if equal else list(world.sizes)),
    ):
        set_value(data, key, value, data.source(key) or "this start")
    if arguments.num_actors is not None:
        raise UsageError(f"--num-actors {arguments.num_actors}: only IMPALA has actors; use --num-workers")
    per_process, total = arguments.num_envs_per_worker, vars(arguments)["env.num_envs"]
    if per_process is None:
        return
    if total not in (None, per_process * world.size):
        raise UsageError(
            f"--num-envs-per-worker {per_process} x {world.size} workers contradicts --num-envs {total}"
        )
    set_value(data, "env.num_envs", per_process * world.size, "--num-envs-per-worker")
