"""Check the installation: one line for each check, exit code 0 if everything works, else 1."""

import sys

from rlcb.cli.quick_test import main

if __name__ == "__main__":
    sys.exit(main())
