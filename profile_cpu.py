# PYTHON_ARGCOMPLETE_OK
"""Know your machine: what limits training here, what share of it this project reaches, and what to set."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.profile")
