# PYTHON_ARGCOMPLETE_OK
"""Train PPO in one process for a given wall-clock time."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.train", "ppo", "sequential", timed=True)
