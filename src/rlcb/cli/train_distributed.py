"""The command line of the distributed scripts: that of every training script, and which node this is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from rlcb import cpu
from rlcb.cli import flags
from rlcb.cli.command import Parser, count, exit_code
from rlcb.cluster.actor_split import is_open, settle_split
from rlcb.cluster.launch import as_starter, discover
from rlcb.cluster.network import require_place
from rlcb.config.config import Config
from rlcb.config.settings import ClusterConfig
from rlcb.config.yaml_file import build_config, describe_validation_error, set_value
from rlcb.errors import Interrupted, UsageError
from rlcb.parallel.calibration import with_split_of
from rlcb.parallel.world import World, host_name
from rlcb.text import counted
from rlcb.training.run_folder import RunFolder, config_of_run, require_same_run
from rlcb.training.run_spec import RunSpec

MODE = "distributed"
FLAGS = (
    ("--num-nodes", "cluster.num_nodes", count, "N", "machines"),
    (
        "--num-workers",
        "cluster.num_workers",
        count,
        "N",
        "processes of each node (default: one per core)",
    ),
    ("--master-addr", "cluster.master_addr", str, "HOST", "address of node 0"),
    ("--master-port", "cluster.master_port", count, "PORT", "a free port of node 0"),
)


def make_parser(algorithm: str, any_algorithm: bool = False) -> Parser:
    parser = flags.make_parser(algorithm, MODE, timed=None if any_algorithm else False)
    cluster = parser.add_argument_group(
        "nodes", "Started by hand, each node needs all of these; torchrun and srun know them already."
    )
    cluster.add_argument("--node-rank", type=count, metavar="N", help="number of this node, from 0")
    for name, key, kind, metavar, text in FLAGS:
        if name != "--num-workers":  # every script has it
            cluster.add_argument(name, dest=key, type=kind, metavar=metavar, help=text)
    return parser


def main(algorithm: str, argv: Sequence[str] | None = None, any_algorithm: bool = False) -> int:
    """Run distributed training in one of its processes; return the exit code.

    `any_algorithm` is true for `rlcb train`, which also takes `--algorithm` and `--mode`.
    """
    code = exit_code(lambda: run(make_parser(algorithm, any_algorithm).parse_args(argv), algorithm))
    if "torch.distributed" in sys.modules:  # peers may be gone: nothing that would wait for them is run
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def run(arguments: argparse.Namespace, algorithm: str) -> int:
    data, source = settings(arguments, algorithm)
    world = discover(cluster_settings(data), arguments.node_rank, os.environ)
    if algorithm == "impala":
        world = as_starter(world)
    apply_world(data, arguments, world)
    given = build_config(data, source)
    require_place(world, given.cluster.network_interface)
    folder, resume = open_folder(arguments, given, world)
    try:
        config = with_split_of_run(given, arguments, world)
        require_fitting(folder, arguments, config, world)
    except UsageError as error:
        tell_others(given, world, str(error))
        raise
    num_threads = cpu.prepare_process(
        config.hardware.num_threads, config.hardware.tune_allocator, default_threads=1
    )
    if world.local_rank is not None:
        from rlcb.cluster.rank import train_as_rank

        return train_as_rank(
            RunSpec(config, folder, num_threads, resume, arguments.overwrite, arguments.trace_folder), world
        )
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
    spec = RunSpec(config, folder, num_threads, resume, arguments.overwrite, arguments.trace_folder)
    return train_on_node(spec, worker_module(config), world, calibration)


def worker_module(config: Config) -> str:
    """The module whose `work` the workers of a node call. Only they import it: it loads torch."""
    return "rlcb.cluster.impala_workers" if config.has_actors else "rlcb.cluster.rank"


def tell_others(config: Config, world: World, text: str) -> None:
    """On node 0, which refuses to begin: have those of all processes that wait for it say why, and end."""
    if world.num_nodes == 1 and world.local_rank is None:
        return  # there are none
    print("Telling the other processes why this run does not begin", flush=True)
    from rlcb.cluster.rendezvous import refuse_all

    purpose = "ranks"
    if config.has_actors and is_open(config):
        purpose = "nodes"
    elif config.has_actors:
        world = replace(world, num_workers=config.learners_per_node)
    refuse_all(world, purpose, config.cluster.timeout_seconds, text)


def describe_node(config: Config, world: World) -> str:
    actors = f" and {counted(config.actors_per_node, 'actor')}" if config.has_actors else ""
    return (
        f"Node {world.node_rank} ({host_name()}) starts ranks {world.rank} to "
        f"{world.rank + world.num_workers - 1} of {world.size}{actors}; rank 0 is at "
        f"{world.master_addr}:{world.master_port}"
    )


def with_split_of_run(config: Config, arguments: argparse.Namespace, world: World) -> Config:
    """The configuration, on the first node with the numbers of actors and learners of the run that goes on if
    they are not given."""
    root = arguments.output_dir
    if not config.has_actors or not is_open(config) or world.rank or not resumes(arguments, world):
        return config
    if root is None or not RunFolder(root, config).config_path.exists():
        return config
    return with_split_of(config, config_of_run(root))


def resumes(arguments: argparse.Namespace, world: World) -> bool:
    """Whether the run goes on in its folder if there is one."""
    return arguments.resume is not None or world.restarts > 0


def settings(arguments: argparse.Namespace, algorithm: str) -> tuple[dict[str, Any], str]:
    """File and flags as plain sections, and where they are from."""
    settings_of_run = arguments.resume == "yes" and arguments.config is None
    if settings_of_run:
        before = config_of_run(output_dir(arguments, "--resume"))
        data, source = before.model_dump(mode="json"), str(arguments.output_dir)
    else:
        data, source = flags.read_settings(arguments)
    flags.apply_flags(data, arguments)
    workers = None if algorithm == "impala" else arguments.num_workers  # which `apply_world` refuses
    given = {**vars(arguments), "cluster.num_workers": workers}
    for name, key, *_ in FLAGS:
        if given[key] is not None:
            set_value(data, key, given[key], name)
    if not settings_of_run:  # which has its limits
        flags.apply_budget(data, arguments)
    return data, source


def output_dir(arguments: argparse.Namespace, why: str) -> Any:
    if arguments.output_dir is None:
        raise UsageError(f"{why} needs --output-dir, the folder of the run to continue")
    return arguments.output_dir


def cluster_settings(data: dict[str, Any]) -> ClusterConfig:
    try:
        return ClusterConfig.model_validate(data.get("cluster") or {})
    except ValidationError as error:
        raise UsageError(f"cluster: {describe_validation_error(error)}") from None


def apply_world(data: dict[str, Any], arguments: argparse.Namespace, world: World) -> None:
    """Write down how many processes there are, so that config.yaml says it."""
    set_value(data, "cluster.num_nodes", world.num_nodes, "cluster.num_nodes")
    if data["algorithm"] == "impala":
        flags.apply_actors(data, arguments, world.num_nodes)
        return
    set_value(data, "cluster.num_workers", world.num_workers, "cluster.num_workers")
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


def open_folder(arguments: argparse.Namespace, config: Config, world: World) -> tuple[RunFolder, bool]:
    """The folder of the run, and whether it goes on there."""
    if not resumes(arguments, world):
        return RunFolder(arguments.output_dir, config), False
    why = f"a run that its launcher has started {world.restarts + 1} times" if world.restarts else "--resume"
    return RunFolder(output_dir(arguments, why), config), True


def require_fitting(folder: RunFolder, arguments: argparse.Namespace, config: Config, world: World) -> None:
    """Raise UsageError on the first node, which alone has to see the folder, if the run cannot begin or go on
    there."""
    root = arguments.output_dir
    if world.rank > 0 or root is None:
        return
    if not resumes(arguments, world):
        if not arguments.overwrite:
            folder.refuse_if_occupied()
        return
    automatic = arguments.resume == "auto" or world.restarts > 0
    if not automatic or folder.config_path.exists():
        require_same_run(config_of_run(root), config)
