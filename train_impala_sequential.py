# PYTHON_ARGCOMPLETE_OK
"""Train IMPALA in one process for a number of timesteps."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.train", "impala", "sequential", timed=False)
