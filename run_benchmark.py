# PYTHON_ARGCOMPLETE_OK
"""Run a study: algorithms x modes x games x seeds one after another, evaluated and compared at the end."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.benchmark")
