"""Train any algorithm in any mode: python train.py --algorithm a2c --mode parallel --duration 1."""

import sys

from rlcb.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
