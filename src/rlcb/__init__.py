"""RL Cluster Benchmark: PPO, A2C, A3C and IMPALA on Procgen, measured on CPUs."""

__version__ = "0.1.0"
