# PYTHON_ARGCOMPLETE_OK
"""Train PPO on several nodes, under torchrun or srun or started by hand on each, for a number of steps."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.train_distributed", "ppo")
