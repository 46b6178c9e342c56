"""Data-parallel training on one machine.

Each worker steps its own environments into its columns of one shared rollout; after a barrier all of them
learn from it together: the same minibatches, of which each takes its share, and one all-reduce a minibatch.
What a worker does is training/trainer.py; how workers are kept is parallel/supervisor.py.
"""

from __future__ import annotations

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlcb.config.config import Config
from rlcb.parallel.gloo import GlooCommunicator, use_loopback, wait_without_limit
from rlcb.parallel.worker import Job, Link
from rlcb.training.run import Process, train

HOST = "127.0.0.1"


def work(job: Job, link: Link) -> int:
    """Join the others over gloo and train on one rollout with them."""
    config = job.spec.config
    communicator = meet(config, link, config.num_processes)
    process = Process(
        communicator,
        link.check,
        lambda size: link.shared_memory(config.parallel, size),
        root_process=job.root_process,
        on_taken=link.has_taken,
    )
    return train(job.spec, process)


def meet(config: Config, link: Link, count: int) -> GlooCommunicator:
    """Join the first `count` processes of this machine over gloo. The first one tells all where."""
    use_loopback()
    if link.rank == 0:
        store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        link.broadcast(store.port)
    else:
        store = TCPStore(HOST, link.broadcast(), is_master=False)
    communicator = GlooCommunicator(
        store,
        link.rank,
        count,
        timeout_seconds=2 * config.parallel.timeout_seconds,  # who hangs is named before who waits gives up
        around_wait=link.wait_for_others,
    )
    wait_without_limit()
    return communicator
