"""Train IMPALA in one process for a number of timesteps."""

import sys

from rlcb.cli.train import main

if __name__ == "__main__":
    sys.exit(main("impala", "sequential", timed=False))
