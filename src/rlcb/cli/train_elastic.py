"""Elastic IMPALA in the distributed mode: node 0 learns, the processes of all other nodes join it.

The process of node 0 runs what the parallel mode runs, and accepts actors of other machines. The others do
what `rlcb join` does. So a node that dies is simply gone, and a node that comes later joins.
"""

from __future__ import annotations

import argparse

from rlcb import cpu
from rlcb.cli import flags
from rlcb.cli.distributed_folder import open_folder, require_startable, with_previous_split
from rlcb.cli.prepared_run import prepare_run
from rlcb.config.config import Config
from rlcb.config.sourced import SourcedSettings
from rlcb.config.yaml_file import build_config, set_value
from rlcb.errors import UsageError
from rlcb.parallel.heartbeat import START_SECONDS
from rlcb.parallel.join import join
from rlcb.parallel.world import World, host_name


def run_elastic(arguments: argparse.Namespace, data: SourcedSettings, world: World) -> int:
    """Learn on node 0, or act for it on another node; return the exit code. Raises UsageError and RunError.

    torchrun starts all processes anew whenever a node comes or goes, and does not count that as a restart. So
    under torchrun the run resumes if its folder holds one.
    """
    if world.launcher == "torchrun" and arguments.resume is None and not arguments.overwrite:
        arguments.resume = "auto"
    config = elastic_config(arguments, data, world)
    port = config.impala.actor_port
    assert port is not None
    if world.node_rank > 0:
        num_actors = config.impala.num_actors or cpu.usable_cores()
        print(
            f"Node {world.node_rank} ({host_name()}) acts for node 0 at {world.master_addr}:{port}",
            flush=True,
        )
        patience = max(config.cluster.timeout_seconds, START_SECONDS)
        return join((world.master_addr, port), num_actors, patience, resumes=False)
    try:
        folder, resume = open_folder(arguments, config, world)
        config = with_previous_split(config, arguments, world)
        require_startable(folder, arguments, config, world)
    except UsageError as error:
        tell_other_nodes(port, str(error), world)
        raise
    spec = prepare_run(arguments, config, folder, resume)
    from rlcb.parallel.supervisor import train_in_workers

    return train_in_workers(spec)


def tell_other_nodes(port: int, text: str, world: World) -> None:
    """Tell the nodes that were started together with node 0 why it does not start."""
    if world.num_nodes > 1:
        from rlcb.parallel.gate import refuse_all  # loads torch

        print("Telling the other nodes why this run does not start", flush=True)
        refuse_all(port, text, world.num_nodes - 1)


def elastic_config(arguments: argparse.Namespace, data: SourcedSettings, world: World) -> Config:
    """Return the configuration of an elastic run, without a number of nodes. Raises UsageError.

    Actors connect to `impala.actor_port`; if it is null, to the port of the run or, where torchrun listens
    there, to the one above.
    """
    set_value(data, "cluster.num_nodes", None, "this start")
    flags.apply_actors(data, arguments)
    given = flags.section(data, "impala").get("actor_port")
    if given is None and world.master_port is not None:
        set_value(data, "impala.actor_port", world.master_port + world.hosted, "this start")
    return build_config(data)
