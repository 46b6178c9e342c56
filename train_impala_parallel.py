"""Train IMPALA with actors and learners on one machine for a number of timesteps."""

import sys

from rlcb.cli.train import main

if __name__ == "__main__":
    sys.exit(main("impala", "parallel", timed=False))
