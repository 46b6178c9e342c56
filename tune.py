# PYTHON_ARGCOMPLETE_OK
"""Search hyperparameters of several algorithms with equal effort (Optuna)."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.tune")
