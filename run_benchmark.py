"""Run a study: algorithms x modes x games x seeds one after another, evaluated and compared at the end."""

import sys

from src.study_cli import main

if __name__ == "__main__":
    sys.exit(main())
