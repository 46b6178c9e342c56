"""Train PPO on several nodes, under torchrun or srun or started by hand on each, for a number of steps."""

import sys

from rlcb.cli.train_distributed import main

if __name__ == "__main__":
    sys.exit(main("ppo"))
