"""Train A2C in one process for a given wall-clock time."""

import sys

from rlcb.cli.train import main

if __name__ == "__main__":
    sys.exit(main("a2c", "sequential", timed=True))
