# PYTHON_ARGCOMPLETE_OK
"""Train PPO in several processes of one machine for a number of timesteps."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.train", "ppo", "parallel", timed=False)
