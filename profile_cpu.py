"""Know your machine: what limits training here, what share of it this project reaches, and what to set."""

import sys

from rlcb.cli.profile import main

if __name__ == "__main__":
    sys.exit(main())
