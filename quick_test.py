# PYTHON_ARGCOMPLETE_OK
"""Check the installation: one line for each check, exit code 0 if everything works, else 1."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.quick_test")
