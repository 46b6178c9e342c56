"""Run a study: algorithms x modes x games x seeds one after another, evaluated and compared at the end."""

import sys

from rlcb.cli.benchmark import main

if __name__ == "__main__":
    sys.exit(main())
