"""A rank of a distributed run: it meets the others, trains with them, and tells them how it ends.

It is started by torchrun or srun, or by its node's first process (parallel/supervisor.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from rlcb.cluster.communicator import ClusterCommunicator
from rlcb.cluster.network import use_interface
from rlcb.cluster.node_memory import share_memory
from rlcb.cluster.rendezvous import MeetingPoint, join_world, post_refusal, shared_settings
from rlcb.cluster.watchdog import Starter, Watch
from rlcb.config.config import Config
from rlcb.errors import EXIT_FAILED, Interrupted, PeerLost, RunError, UsageError, first_line
from rlcb.parallel.heartbeat import ABORT
from rlcb.parallel.worker import Job, Link
from rlcb.parallel.world import World
from rlcb.processes.signals import StopSignal
from rlcb.training.base import LearningProcess
from rlcb.training.results import failure_recorded, write_failed_record
from rlcb.training.run import Process, train
from rlcb.training.run_spec import RunSpec
from rlcb.training.trainer import Trainer


def work(job: Job, link: Link, make_trainer: Callable[..., LearningProcess] = Trainer) -> int:
    """What a worker does that its node's first process has started."""
    heartbeats, rank = link.heartbeats, link.rank

    def beat() -> None:
        heartbeats.beats[rank] = time.monotonic()

    def on_hang(text: str) -> None:
        link.connection.send(("run", text))
        os._exit(EXIT_FAILED)

    starter = Starter(
        asked=lambda: max(0, heartbeats.stop.value),
        aborted=lambda: heartbeats.stop.value == ABORT,
        cause=lambda: heartbeats.cause,
        beat=beat,
        around_wait=link.wait_for_others,
        on_hang=on_hang,
        memory=lambda size: link.shared_memory(job.spec.config.parallel, size),
        broadcast=link.broadcast,
        on_taken=link.has_taken,
        root_process=job.root_process,
    )
    return run_rank(job, replace(job.world, local_rank=rank), starter, make_trainer)


def train_as_rank(spec: RunSpec, world: World) -> int:
    """Train in this process as one rank, which torchrun or srun has started. Errors name the rank."""
    name = world.rank_name(0 if world.local_rank is None else world.local_rank)
    job = Job("", None, None, spec, os.getpid(), world)
    config, folder = spec.config, spec.folder
    with StopSignal(repeats=True) as stop, failure_recorded(folder, config) as taken:

        def on_hang(text: str) -> None:
            print(f"{Path(sys.argv[0]).name}: failed: {name}: {text}", file=sys.stderr, flush=True)
            try:
                if taken:
                    write_failed_record(folder, config)
            finally:
                os._exit(EXIT_FAILED)

        # The launcher's tree is that of all ranks of the node.
        starter = Starter(
            asked=lambda: stop.number,
            on_hang=on_hang,
            on_taken=taken.append,
            root_process=os.getppid(),
        )
        try:
            return run_rank(job, world, starter)
        except PeerLost:
            raise  # in words that already name a rank
        except RunError as error:
            raise RunError(f"{name}: {error}") from error


def run_rank(
    job: Job, world: World, starter: Starter, make_trainer: Callable[..., LearningProcess] = Trainer
) -> int:
    """Meet the other ranks and train with them; returns the exit code. All ranks end for the same reason."""

    def check_start() -> None:
        starter.beat()
        if starter.aborted():
            raise PeerLost("another process of this node failed")
        if starter.asked():
            raise Interrupted(starter.asked())

    use_interface(world, job.spec.config.cluster.network_interface)
    timeout_seconds = job.spec.config.cluster.timeout_seconds
    store: Any = None
    try:
        with starter.around_wait():
            point = open_meeting_point(world, job.spec.config, starter)
            point.agree_on_start("ranks", world.rank, world.size, check_start)
            store = point.connect()
            mine = shared_settings(job.spec.config, job.spec.resume)
            names = join_world(store, world, mine, timeout_seconds, check_start)
        watch = Watch(point.connect, world, names, timeout_seconds, starter)
    except Interrupted as interruption:  # nothing has begun
        return interruption.exit_code
    except RunError:
        why = starter.cause()
        if store is not None and why is not None:
            with contextlib.suppress(RuntimeError):  # rank 0 is gone as well
                post_refusal(store, *why)
        raise
    except RuntimeError as error:
        cause = first_line(error)
        raise PeerLost(f"{world.rank_name(world.local_rank or 0)} lost rank 0: {cause}") from error
    finally:
        if world.rank == 0 and sys.exc_info()[0] is not None:
            time.sleep(1.0)  # for the others to read in the store what was refused
    return watched(job, world, starter, watch, store, make_trainer)


def open_meeting_point(world: World, config: Config, starter: Starter) -> MeetingPoint:
    """The store of the run; with any free port, which only one node can use, its ranks are told which."""
    timeout = config.cluster.timeout_seconds
    if world.master_port is not None or starter.broadcast is None:
        return MeetingPoint(world, timeout)
    if world.rank == 0:
        point = MeetingPoint(world, timeout)
        starter.broadcast(point.port)
        return point
    return MeetingPoint(replace(world, master_port=starter.broadcast(None)), timeout)


def watched(
    job: Job,
    world: World,
    starter: Starter,
    watch: Watch,
    store: Any,
    make_trainer: Callable[..., LearningProcess],
) -> int:
    """Train under the eyes of the others."""

    def check_stop() -> None:
        starter.beat()
        watch.check()

    def memory(size: int) -> Any:
        ours = starter.memory
        if ours is None:
            return share_memory(store, world, job.spec.config.parallel, size, watch)
        return communicator.wait_for_peers(lambda: ours(size))

    try:
        communicator = ClusterCommunicator(PrefixStore("gloo", store), world, job.spec.config.cluster, watch)
        process = Process(
            communicator,
            check_stop,
            memory,
            make_trainer,
            starter.root_process,
            starter.asked,
            starter.on_taken,
        )
        return train(job.spec, process)
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
