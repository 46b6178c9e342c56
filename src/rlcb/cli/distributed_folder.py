"""The folder of a distributed run as node 0 finds it: whether the run starts or resumes there."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlcb.cluster.actor_split import is_open
from rlcb.config.config import Config
from rlcb.errors import UsageError
from rlcb.parallel.calibration import with_split_of
from rlcb.parallel.world import World
from rlcb.training.run_folder import RunFolder, config_of_run, require_same_run
from rlcb.training.tracking import require_tracker


def may_resume(arguments: argparse.Namespace, world: World) -> bool:
    """Return whether the run resumes if its folder already holds one."""
    return arguments.resume is not None or world.restarts > 0


def output_dir(arguments: argparse.Namespace, why: str) -> Path:
    """Return `--output-dir`. Raises UsageError, with the reason `why`, if it is not given."""
    if arguments.output_dir is None:
        raise UsageError(f"{why} needs --output-dir, the folder of the run to continue")
    folder: Path = arguments.output_dir
    return folder


def with_previous_split(config: Config, arguments: argparse.Namespace, world: World) -> Config:
    """On node 0, take numbers of actors and learners that are not set from the run that is resumed."""
    root = arguments.output_dir
    if not config.has_actors or not is_open(config) or world.rank or not may_resume(arguments, world):
        return config
    if root is None or not RunFolder(root, config).config_path.exists():
        return config
    return with_split_of(config, config_of_run(root))


def open_folder(arguments: argparse.Namespace, config: Config, world: World) -> tuple[RunFolder, bool]:
    """Return the folder of the run, and whether to resume there. Raises UsageError."""
    if not may_resume(arguments, world):
        return RunFolder(arguments.output_dir, config), False
    why = "--resume"
    if world.restarts:
        why = f"a run that its launcher has started {world.restarts + 1} times"
    elif config.cluster.elastic and world.launcher == "torchrun":
        why = "an elastic run, which torchrun starts anew when a node comes or goes,"
    return RunFolder(output_dir(arguments, why), config), True


def require_startable(folder: RunFolder, arguments: argparse.Namespace, config: Config, world: World) -> None:
    """Raise UsageError if the folder holds a run that this one must not replace or cannot resume, or if the
    tracker is not installed.

    Only node 0 checks: the other nodes need not see the folder.
    """
    root = arguments.output_dir
    if world.rank > 0:
        return
    require_tracker(config.logging.track)
    if root is None:
        return
    if not may_resume(arguments, world):
        if not arguments.overwrite:
            folder.refuse_if_occupied()
        return
    automatic = arguments.resume == "auto" or world.restarts > 0
    if not automatic or folder.config_path.exists():
        require_same_run(config_of_run(root), config)
