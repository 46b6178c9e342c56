"""Evaluate a checkpoint; which algorithm it is of is read from it."""

import sys

from rlcb.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
