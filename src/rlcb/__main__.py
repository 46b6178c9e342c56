# PYTHON_ARGCOMPLETE_OK
"""`python -m rlcb`: the same as the command `rlcb`."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.main")
