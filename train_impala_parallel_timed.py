"""Train IMPALA with actors and learners on one machine for a given wall-clock time."""

import sys

from rlcb.cli.train import main

if __name__ == "__main__":
    sys.exit(main("impala", "parallel", timed=True))
