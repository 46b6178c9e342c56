# PYTHON_ARGCOMPLETE_OK
"""Compare runs: tables, statistics, plots and one page, from the folders that training scripts leave."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.compare")
