"""Verify the installation: a line for each check, exit code 0 if everything works, else 1."""

import argparse
import sys
from typing import NoReturn

from rlcb.cli.quick_test import verify_installation


class Parser(argparse.ArgumentParser):
    """That of src/rlcb/cli/flags.py needs packages that may be missing here."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


if __name__ == "__main__":
    Parser(description=__doc__, allow_abbrev=False).parse_args()
    sys.exit(verify_installation())
