"""IMPALA with actors and a learner (Espeholt et al. 2018, section 3).

Actors (src/actor.py) write unrolls into slots of a store in shared memory (src/unroll_store.py); only slot
numbers travel, through two queues (src/slot_queue.py). The learner (src/central_learner.py) takes a batch of
slots, learns from it, publishes the new parameters (src/published_weights.py), and gives the slots out again
(src/batches.py). How these processes are kept is src/workers.py.
"""

from __future__ import annotations

from functools import partial

from src.actor import Actor
from src.central_learner import CentralLearner, open_shared_parts
from src.config import Config
from src.distributed import Communicator
from src.parallel import meet
from src.run import Process, train
from src.slot_queue import SlotQueue
from src.worker_process import Job, Link


def work(job: Job, link: Link) -> int:
    """Be the learner or the actor that the rank says."""
    config, queues = job.config, tuple(SlotQueue(ends) for ends in job.queues)
    if link.rank >= config.num_learners:
        return act(job, link, queues)
    spaces = link.share(source=config.num_learners)
    communicator = join_learners(config, link)
    process = Process(
        communicator,
        link.check,
        lambda size: link.shared_memory(config.parallel, size),
        partial(CentralLearner, spaces=spaces, queues=queues, link=link, calibration=job.calibration),
        job.root_process,
    )
    return train(config, job.folder, job.num_threads, job.resume, job.overwrite, process)


def act(job: Job, link: Link, queues: tuple[SlotQueue, ...]) -> int:
    config, first = job.config, job.config.num_learners
    actor = Actor(job, link, link.rank - first, node_rank=0)
    if not link.incarnation:
        link.share(actor.spaces, source=first)
        link.share()  # where the learners meet, which is not for actors
    store, weights = open_shared_parts(
        config, actor.spaces, actor.num_parameters, lambda size: link.shared_memory(config.parallel, size)
    )
    actor.join(store, weights, queues)
    actor.act()
    return 0


def join_learners(config: Config, link: Link) -> Communicator:
    """The communicator of the learners of one machine."""
    if config.num_learners == 1:
        link.share()
        return Communicator()
    return meet(config, link, config.num_learners)
