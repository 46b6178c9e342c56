"""IMPALA on several nodes: every node has its own actors, slots and learners.

The learners of all nodes are the ranks of the distributed run and sum their gradients. Actors talk only to
the learners of their own node, exactly as on one machine (parallel/impala_workers.py).
"""

from __future__ import annotations

from functools import partial

from rlcb.cluster import rank
from rlcb.parallel.impala_workers import make_learner, run_actor
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.training.run_spec import RunSpec


def work(spec: RunSpec, context: SupervisedContext) -> int:
    """Run one learner or actor of this node until training ends; return the exit code of the run."""
    if context.rank >= spec.config.learners_per_node:
        return run_actor(spec, context)
    return rank.work(spec, context, partial(make_learner, context))
