# PYTHON_ARGCOMPLETE_OK
"""Train PPO in several processes of one machine for a given wall-clock time."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.train", "ppo", "parallel", timed=True)
