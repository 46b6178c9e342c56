"""Train A2C in several processes of one machine for a number of timesteps."""

import sys

from rlcb.cli.train import main

if __name__ == "__main__":
    sys.exit(main("a2c", "parallel", timed=False))
