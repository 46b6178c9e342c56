"""`python -m rlcb`: the same as the command `rlcb`."""

import sys

from rlcb.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
