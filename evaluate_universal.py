# PYTHON_ARGCOMPLETE_OK
"""Evaluate a checkpoint of any algorithm, or the random policy, in any environment."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.evaluate")
