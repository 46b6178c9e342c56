"""Compare runs: tables, statistics, plots and one page, from the folders that training scripts leave."""

import sys

from rlcb.cli.compare import main

if __name__ == "__main__":
    sys.exit(main())
