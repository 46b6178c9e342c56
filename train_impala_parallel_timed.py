# PYTHON_ARGCOMPLETE_OK
"""Train IMPALA with actors and learners on one machine for a given wall-clock time."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.train", "impala", "parallel", timed=True)
