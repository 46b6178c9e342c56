"""Evaluate a checkpoint of any algorithm, or the random policy, in any environment."""

import sys

from rlcb.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
