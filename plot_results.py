# PYTHON_ARGCOMPLETE_OK
"""Draw the training curves of a run: return, FPS, losses and entropy."""

from rlcb.start import start

if __name__ == "__main__":
    start("rlcb.cli.plot")
