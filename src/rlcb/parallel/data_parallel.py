"""Data-parallel training on one machine: PPO and A2C with worker processes.

Each worker steps its own environments into its columns of one shared rollout. After a barrier all workers
learn from the whole rollout: they draw the same minibatches, each takes its shard, and one sum per minibatch
adds the gradients, through shared memory (shared_sum.py) or gloo. What a worker does is in
training/trainer.py; supervisor.py starts the workers.
"""

from __future__ import annotations

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlcb.config.config import Config
from rlcb.parallel.gloo import GlooCommunicator, use_loopback, wait_without_limit
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.training.run import train
from rlcb.training.run_spec import RunSpec

HOST = "127.0.0.1"


def work(spec: RunSpec, context: SupervisedContext) -> int:
    """Run one worker until training ends; return the exit code of the run."""
    return train(spec, context, join_workers(spec.config, context, spec.config.num_processes))


def join_workers(config: Config, context: SupervisedContext, count: int) -> GlooCommunicator:
    """Connect the first `count` workers of this machine over gloo. Rank 0 broadcasts the port."""
    use_loopback()
    if context.rank == 0:
        store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        context.broadcast(store.port)
    else:
        store = TCPStore(HOST, context.broadcast(), is_master=False)
    communicator = GlooCommunicator(
        store,
        context.rank,
        count,
        timeout_seconds=2 * config.parallel.timeout_seconds,  # the supervisor names a hanging worker earlier
        around_wait=context.wait_for_others,
        check=context.check,
    )
    wait_without_limit()
    return communicator
