# PYTHON_ARGCOMPLETE_OK
"""Train any algorithm in any mode: python train.py --algorithm a2c --mode parallel --duration 1."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.train")
