"""Verify the installation: a line for each check, exit code 0 if everything works, else 1."""

import sys

from src.installation import verify_installation

if __name__ == "__main__":
    sys.exit(verify_installation())
