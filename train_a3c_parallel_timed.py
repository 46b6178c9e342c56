"""Train A3C in asynchronous processes of one machine for a given wall-clock time."""

import sys

from rlcb.cli.train import main

if __name__ == "__main__":
    sys.exit(main("a3c", "parallel", timed=True))
