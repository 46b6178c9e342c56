# PYTHON_ARGCOMPLETE_OK
"""Evaluate a checkpoint; which algorithm it is of is read from it."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.evaluate")
