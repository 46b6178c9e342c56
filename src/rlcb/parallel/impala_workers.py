"""IMPALA with actors and learners (Espeholt et al. 2018, section 3), on one machine or on several.

Actors (impala_actor.py) write unrolls into slots of a store in shared memory (unroll_store.py). Only slot
numbers travel, through two queues (slot_queue.py). The learner (impala_learner.py) takes a batch of slots,
learns from it, publishes the new parameters (parameter_snapshot.py), and returns the slots
(unroll_batches.py). supervisor.py starts and watches these processes. In a distributed run every node has its
own actors, slots and learners; the learners of all nodes sum their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlcb.config.config import Config
from rlcb.parallel.data_parallel import meet
from rlcb.parallel.impala_actor import Actor
from rlcb.parallel.impala_learner import ImpalaLearner, open_shared_parts
from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.worker import Job, Link
from rlcb.rl.communicator import Communicator
from rlcb.training.run import Process, train


def work(job: Job, link: Link) -> int:
    """Run this process's part, a learner or an actor, until training ends; returns the exit code."""
    config, queues = job.spec.config, slot_queues(job)
    if link.rank >= config.learners_per_node:
        return act(job, link, queues)
    process = Process(
        join_learners(config, link),
        link.check,
        lambda size: link.shared_memory(config.parallel, size),
        learner_maker(job, link, queues),
        job.root_process,
        on_taken=link.has_taken,
    )
    return train(job.spec, process)


def slot_queues(job: Job) -> tuple[SlotQueue, ...]:
    """The queue of slots that actors may write, and the queue of slots that they have written."""
    return tuple(SlotQueue(ends) for ends in job.queues)


def learner_maker(job: Job, link: Link, queues: tuple[SlotQueue, ...]) -> Callable[..., ImpalaLearner]:
    """What makes this node's learner once the first actor has said what its environments are like, and all
    have made theirs: a run that cannot begin takes no folder."""

    def make(
        config: Config,
        communicator: Communicator,
        num_threads: int,
        heartbeat: Callable[[], None],
        shared_memory: Callable[[int], Any],
    ) -> ImpalaLearner:
        first = config.learners_per_node
        spaces = communicator.wait_for_peers(lambda: link.broadcast(source=first))
        communicator.wait_for_peers(lambda: link.await_begun(range(first, first + config.actors_per_node)))
        return ImpalaLearner(
            config,
            communicator,
            num_threads,
            heartbeat,
            shared_memory,
            spaces,
            queues,
            link,
            job.calibration,
        )

    return make


def act(job: Job, link: Link, queues: tuple[SlotQueue, ...]) -> int:
    config, world, first = job.spec.config, job.world, job.spec.config.learners_per_node
    actor = Actor(job, link, link.rank - first, 0 if world is None else world.node_rank)
    link.heartbeats.check(link.rank, heeds_signals=False)  # its environments are there; learners wait for all
    if not link.generation:
        if world is None or world.master_port is None:
            link.broadcast()  # where the learners meet, which is not for actors
        link.broadcast(actor.spaces, source=first)
    store, weights = open_shared_parts(
        config, actor.spaces, actor.num_parameters, lambda size: link.shared_memory(config.parallel, size)
    )
    actor.join(store, weights, queues)
    actor.act()
    return 0


def join_learners(config: Config, link: Link) -> Communicator:
    """The communicator of the learners of one machine."""
    if config.num_learners == 1:
        link.broadcast()
        return Communicator()
    return meet(config, link, config.num_learners)
