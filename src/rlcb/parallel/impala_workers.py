"""IMPALA with actors and learners (Espeholt et al. 2018, section 3): the processes and who talks to whom.

        free slots  +---------------- queue -----------------+
                    v                                        |
               +--------+   unrolls    +--------------+   +---------+
               | actors | -----------> | UnrollStore  |-->| learner |
               |        | <----------- | Parameter-   |<--|         |
               +--------+  parameters  | Snapshot     |   +---------+
                    |                  +--------------+      ^
                    +---------------- queue -----------------+
                                                   full slots

An actor (impala_actor.py) takes the number of a free slot, writes one unroll into it with the newest
parameters, and queues the number as full. The learner (impala_learner.py) collects a batch of full slots,
makes one update, publishes its parameters, and queues the slots as free again (unroll_batches.py).

Unrolls (unroll_store.py) and parameters (parameter_snapshot.py) lie in one block of shared memory; only slot
numbers travel, through two pipes (slot_queue.py). There may be several learners, which share each batch and
sum their gradients; only the first one handles slots. supervisor.py starts and watches all processes: ranks
0, 1, ... are the learners, the ranks after them the actors. cluster/impala_workers.py adds several nodes.
"""

from __future__ import annotations

from functools import partial

from rlcb.config.config import Config
from rlcb.parallel.data_parallel import join_workers
from rlcb.parallel.impala_actor import Actor
from rlcb.parallel.impala_learner import ImpalaLearner, open_shared_parts
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.rl.communicator import Communicator
from rlcb.training.base import ProcessSetup
from rlcb.training.run import train
from rlcb.training.run_spec import RunSpec


def work(spec: RunSpec, context: SupervisedContext) -> int:
    """Run one learner or actor until training ends; return the exit code of the run."""
    if context.rank >= spec.config.learners_per_node:
        return run_actor(spec, context)
    return train(spec, context, join_learners(spec.config, context), partial(make_learner, context))


def run_actor(spec: RunSpec, context: SupervisedContext) -> int:
    """Run an actor until the learners have finished. Returns 0."""
    config, world = spec.config, context.world
    actor = Actor(spec, context)
    context.beat()  # its environments are ready: the learners wait for that
    if not context.generation:  # a replacement comes after the broadcasts
        if world is None or world.master_port is None:
            context.broadcast()  # the learners' port, which an actor does not need
        context.broadcast(actor.spaces, source=config.learners_per_node)
    memory = partial(context.shared_memory, config.parallel)
    store, snapshot = open_shared_parts(config, actor.spaces, actor.num_parameters, memory)
    actor.join(store, snapshot)
    actor.act()
    return 0


def make_learner(context: SupervisedContext, setup: ProcessSetup) -> ImpalaLearner:
    """Build this process's learner once the actors are ready; `train` calls it.

    The first actor tells which spaces the environments have. A run whose environments cannot be made thus
    fails before it takes its folder.
    """
    config, communicator = setup.config, setup.communicator
    first = config.learners_per_node
    actors = range(first, first + config.actors_per_node)
    spaces = communicator.wait_for_peers(lambda: context.broadcast(source=first))
    communicator.wait_for_peers(lambda: context.wait_until_ready(actors))
    return ImpalaLearner(setup, spaces, context)


def join_learners(config: Config, context: SupervisedContext) -> Communicator:
    """Connect the learners of this machine."""
    if config.num_learners == 1:
        context.broadcast()  # the port that the actors expect
        return Communicator()
    return join_workers(config, context, config.num_learners)
