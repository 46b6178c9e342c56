"""Train PPO in several processes of one machine for a given wall-clock time."""

import sys

from rlcb.cli.train import main

if __name__ == "__main__":
    sys.exit(main("ppo", "parallel", timed=True))
