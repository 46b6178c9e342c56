"""Train A3C in asynchronous processes of one machine for a number of timesteps."""

import sys

from rlcb.cli.train import main

if __name__ == "__main__":
    sys.exit(main("a3c", "parallel", timed=False))
