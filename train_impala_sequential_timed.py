# PYTHON_ARGCOMPLETE_OK
"""Train IMPALA in one process for a given wall-clock time."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.train", "impala", "sequential", timed=True)
