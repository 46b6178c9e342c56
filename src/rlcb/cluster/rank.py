"""A rank of a distributed run: it meets the other ranks, trains with them, and tells them how it ends.

torchrun or srun starts it (`train_as_rank`), or its node's supervisor (`work`; parallel/supervisor.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from rlcb import cpu
from rlcb.cluster.communicator import ClusterCommunicator
from rlcb.cluster.network import use_interface
from rlcb.cluster.node_memory import share_memory
from rlcb.cluster.rendezvous import MeetingPoint, join_world, post_refusal, shared_settings
from rlcb.cluster.watchdog import Watchdog
from rlcb.config.settings import ParallelConfig
from rlcb.errors import EXIT_FAILED, Interrupted, PeerLost, RunError, UsageError, first_line
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.parallel.world import World
from rlcb.processes.shared_memory import open_rollout, open_shared
from rlcb.processes.signals import StopSignal
from rlcb.training.base import MakeTrainer
from rlcb.training.results import failure_recorded, write_failed_record
from rlcb.training.run import train
from rlcb.training.run_spec import RunSpec
from rlcb.training.trainer import Trainer
from rlcb.training.worker_context import WorkerContext


@dataclass(kw_only=True)
class LaunchedContext(WorkerContext):
    """The context of a rank that torchrun or srun started as a process of its own."""

    spec: RunSpec
    name: str
    """The rank's name in messages: "rank 1 on HOST"."""

    def stop_requested(self) -> int:
        return 0 if self.stop is None else self.stop.number

    def report_hang(self, message: str) -> None:
        program = Path(sys.argv[0]).name
        print(f"{program}: failed: {self.name}: {message}", file=sys.stderr, flush=True)
        try:
            if self.folder is not None:
                write_failed_record(self.spec.folder, self.spec.config)
        finally:
            os._exit(EXIT_FAILED)


@dataclass(kw_only=True)
class RankContext(WorkerContext):
    """The context of a rank while it trains: that of its process, extended by the other ranks' failures."""

    process: WorkerContext
    """How this process is stopped and watched on its own node."""
    world: World
    store: Any
    """The main thread's connection to the store of the run (rendezvous.py)."""
    watch: Watchdog
    """Raises in `check` why the run ends, the same on all ranks."""
    communicator: ClusterCommunicator

    def check(self) -> None:
        self.process.beat()
        self.watch.check()

    def stop_requested(self) -> int:
        return self.process.stop_requested()

    def wait_for_others(self) -> contextlib.AbstractContextManager[None]:
        return self.watch.waiting()

    def report_folder(self, root: Path) -> None:
        self.process.report_folder(root)

    def shared_memory(self, config: ParallelConfig, size: int) -> Any:
        """Return a buffer of `size` bytes that all ranks of this node share."""
        if isinstance(self.process, SupervisedContext):
            return self.communicator.wait_for_peers(lambda: self.process.shared_memory(config, size))
        opened = partial(open_rollout, config, size)
        memory, peers = share_memory(self.store, self.world, "memory", opened, self.watch)
        peers.close()
        return memory


def work(spec: RunSpec, context: SupervisedContext, make_trainer: MakeTrainer = Trainer) -> int:
    """Run one rank that its node's supervisor started; return the exit code of the run."""
    assert context.world is not None
    return run_rank(spec, replace(context.world, local_rank=context.rank), context, make_trainer)


def train_as_rank(spec: RunSpec, world: World) -> int:
    """Run the rank that torchrun or srun started as this process; return the exit code of the run.

    The message of every RunError names the rank.
    """
    name = world.rank_name(0 if world.local_rank is None else world.local_rank)
    with spec.claimed_cores(1) as pinning, StopSignal(repeats=True) as stop:
        if pinning:
            cpu.pin(pinning[0])
            spec = replace(spec, pinning=pinning)
        # The launcher's process tree has all ranks of the node.
        context = LaunchedContext(stop=stop, root_process=os.getppid(), spec=spec, name=name)
        with failure_recorded(spec, context):
            try:
                return run_rank(spec, world, context)
            except PeerLost:
                raise  # its message already names a rank
            except RunError as error:
                raise RunError(f"{name}: {error}") from error


def run_rank(spec: RunSpec, world: World, context: WorkerContext, make_trainer: MakeTrainer = Trainer) -> int:
    """Meet the other ranks and train with them; return the exit code. All ranks end for the same reason."""

    def check_start() -> None:
        context.beat()
        if context.aborted():
            raise PeerLost("another process of this node failed")
        if context.stop_requested():
            raise Interrupted(context.stop_requested())

    use_interface(world, spec.config.cluster.network_interface)
    timeout_seconds = spec.config.cluster.timeout_seconds
    store: Any = None
    try:
        with context.wait_for_others():
            point = open_meeting_point(world, timeout_seconds, context)
            point.agree_on_start("ranks", world.rank, world.size, check_start)
            store = point.connect()
            settings = shared_settings(spec.config, spec.resume)
            names = join_world(store, world, settings, timeout_seconds, check_start)
        watch = Watchdog(point.connect, world, names, timeout_seconds, context)
    except Interrupted as interruption:  # before the run began: there is nothing to record
        return interruption.exit_code
    except RunError:
        cause = context.abort_cause()
        if store is not None and cause is not None:
            with contextlib.suppress(RuntimeError):  # rank 0 is gone as well
                post_refusal(store, *cause)
        raise
    except RuntimeError as error:
        name = world.rank_name(world.local_rank or 0)
        raise PeerLost(f"{name} lost rank 0: {first_line(error)}") from error
    finally:
        if world.rank == 0 and sys.exc_info()[0] is not None:
            time.sleep(1.0)  # the other ranks read the reason in the store, which ends with this process
    return train_watched(spec, world, context, watch, store, make_trainer)


def open_meeting_point(world: World, timeout_seconds: float, context: WorkerContext) -> MeetingPoint:
    """Return this rank's access to the store of the run.

    Without a configured port, which only a run on one node may leave out, rank 0 takes a free port and
    broadcasts it to the other ranks.
    """
    if world.master_port is not None:
        return MeetingPoint(world, timeout_seconds)
    if world.rank == 0:
        point = MeetingPoint(world, timeout_seconds)
        context.broadcast(point.port)
        return point
    return MeetingPoint(replace(world, master_port=context.broadcast()), timeout_seconds)


def train_watched(
    spec: RunSpec,
    world: World,
    context: WorkerContext,
    watch: Watchdog,
    store: Any,
    make_trainer: MakeTrainer,
) -> int:
    """Train with the other ranks; if this rank fails, tell them why. Returns the exit code."""
    try:
        communicator = ClusterCommunicator(
            PrefixStore("gloo", store),
            world,
            spec.config.cluster,
            watch,
            lambda size: share_memory(store, world, "sums", partial(open_shared, size), watch),
        )
        rank_context = RankContext(
            root_process=context.root_process,
            process=context,
            world=world,
            store=store,
            watch=watch,
            communicator=communicator,
        )
        return train(spec, rank_context, communicator, make_trainer)
    except Interrupted as interruption:
        return interruption.exit_code
    except PeerLost:
        raise
    except UsageError as error:
        watch.fail("usage", str(error))
        raise
    except RunError as error:
        watch.fail("run", f"{watch.name}: {error}")
        raise
    except BaseException as error:
        watch.fail("fault", f"{watch.name}: {type(error).__name__}: {error}")
        raise
    finally:
        watch.close()
