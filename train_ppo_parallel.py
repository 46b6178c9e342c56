"""Train PPO in several processes of one machine for a number of timesteps."""

import sys

from rlcb.cli.train import main

if __name__ == "__main__":
    sys.exit(main("ppo", "parallel", timed=False))
