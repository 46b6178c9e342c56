"""What overlap and compression of the all-reduce bring, on two ranks joined by a shaped link.

    venv/bin/python -m perf.cluster_reduction [--rates 1gbit 100mbit] [--architecture nature]

As root, with iproute2: the ranks are in network namespaces. Prints, for each link, the timesteps per second
of whole updates and the time of an update that goes into waiting for the sum. Rounds alternate, so that what
else the machine does meets all alike.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from tests import runs
from tests.cluster_runs import PPO, Nodes, two_hosts

WAYS = {
    "one all-reduce": (),
    "overlap": ("--set", "cluster.overlap=true"),
    "bf16": ("--set", "cluster.compression=bf16"),
    "overlap, bf16": ("--set", "cluster.overlap=true", "--set", "cluster.compression=bf16"),
}
ENVS, STEPS, BATCH, UPDATES, WARM = 16, 32, 128, 7, 2


def measure(rate: str, flags: tuple[str, ...], architecture: str) -> tuple[float, float]:
    """Timesteps per second and seconds of `sync` in an update (the mean of ranks), medians over updates."""
    with tempfile.TemporaryDirectory() as folder, two_hosts(rate) as (names, address):
        with Nodes(address, names) as nodes:
            nodes.start(
                PPO, "--env", "coinrun", "--num-envs", ENVS, "--n-steps", STEPS, "--batch-size", BATCH,
                "--n-epochs", 2, "--set", f"model.architecture={architecture}", "--num-workers", 1,
                "--set", "model.hidden_size=512", "--set", "logging.tensorboard=false",
                "--total-timesteps", ENVS * STEPS * UPDATES, "--output-dir", Path(folder) / "run", *flags,
            )  # fmt: skip
            for code, _, errors in nodes.wait(300):
                if code:
                    raise SystemExit(errors)
        rows = runs.rows(Path(folder) / "run")[WARM:]
    return (
        statistics.median(row["time/fps"] for row in rows),
        statistics.median(row["profile/sync_seconds"] for row in rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"], help="links, as tc writes them")
    parser.add_argument("--architecture", default="nature", choices=("nature", "impala"))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{'link':<10}{'all-reduce':<18}{'FPS':>8}{'sync, s an update':>20}")
    for rate in arguments.rates:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
        for _ in range(arguments.rounds):
            for name, flags in WAYS.items():
                found[name].append(measure(rate, flags, arguments.architecture))
        for name, pairs in found.items():
            fps, sync = (statistics.median(column) for column in zip(*pairs))
            print(f"{rate:<10}{name:<18}{fps:>8.0f}{sync:>20.3f}", flush=True)


if __name__ == "__main__":
    main()
