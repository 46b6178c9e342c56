"""Draw the training curves of a run: return, FPS, losses and entropy."""

import sys

from rlcb.cli.plot import main

if __name__ == "__main__":
    sys.exit(main())
