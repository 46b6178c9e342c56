"""IMPALA on several nodes: every node has its own actors, slots and learners.

The learners of all nodes are the ranks of the distributed run and sum their gradients. Actors talk only to
the learners of their own node, exactly as on one machine (parallel/impala_workers.py).
"""

from __future__ import annotations

from rlcb.cluster import rank
from rlcb.parallel.impala_workers import act, learner_maker, slot_queues
from rlcb.parallel.worker import Job, Link


def work(job: Job, link: Link) -> int:
    """Run this process's part, a learner or an actor of its node, until training ends; returns the exit
    code."""
    queues = slot_queues(job)
    if link.rank >= job.spec.config.learners_per_node:
        return act(job, link, queues)
    return rank.work(job, link, learner_maker(job, link, queues))
