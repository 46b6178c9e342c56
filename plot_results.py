"""Draw the training curves of a run: return, FPS, losses and entropy."""

import sys
from pathlib import Path

from rlcb.cli.command import Parser, exit_code


def main() -> int:
    parser = Parser(description=__doc__)
    source, target = "metrics.jsonl of a run, or the run's folder", "training_curves.png in the run's folder"
    parser.add_argument("--log-file", type=Path, required=True, metavar="FILE", help=source)
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"png, svg or pdf (default: {target})")
    axes = ("timesteps", "hours")
    parser.add_argument("--x", choices=axes, default=axes[0], help="horizontal axis (default: %(default)s)")
    arguments = parser.parse_args()

    from rlcb.plots.training_curves import plot_run  # numpy and matplotlib: not needed for --help

    print(f"Training curves: {plot_run(arguments.log_file, arguments.output, arguments.x)}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
