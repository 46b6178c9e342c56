"""RL Cluster Benchmark: PPO, A2C, A3C and IMPALA on Procgen, measured on CPUs.

    import rlcb

    run = rlcb.train("ppo", "parallel", env="coinrun", duration="6m")
    policy = rlcb.load(run)
    actions = policy.predict(observations)
    for finding in rlcb.compare([run, "runs/another"]):
        print(finding)

The functions are in rlcb/api.py, which is imported when one of them is first used.
"""

__version__ = "0.1.0"
__all__ = ["Interrupted", "Policy", "Run", "RunError", "UsageError", "compare", "load", "train"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rlcb.api import Interrupted, Policy, Run, RunError, UsageError, compare, load, train


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rlcb' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("rlcb.api"), name)
