"""What pages of 2 MB instead of 4 KB are worth: glibc asks the kernel for them when a run is started with
GLIBC_TUNABLES=glibc.malloc.hugetlb=1.

    venv/bin/python -m perf.huge_pages [--network impala nature]

It matters where /sys/kernel/mm/transparent_hugepage/enabled says `madvise`, as on Ubuntu; where it says
`always` every run has them.
"""

from __future__ import annotations

import argparse
import os
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from perf.measure import interleave, save, table
from perf.training_runs import train
from rlcb.errors import UsageError

TUNABLE, HUGE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ENVS, STEPS = 32, 128
UPDATES = {"impala": 4, "nature": 12}


def run(network: str, huge: bool, peaks: list[float]) -> float:
    """Return the timesteps per second of parallel PPO, one worker per core; append its peak memory."""
    if huge:
        os.environ[TUNABLE] = HUGE
    try:
        steps = ENVS * STEPS * UPDATES[network]
        flags = ("--num-envs", ENVS, "--n-steps", STEPS, "--n-epochs", 1, "--total-timesteps", steps)
        result = train("train_ppo_parallel.py", flags, (f"model.architecture={network}",))
    finally:
        os.environ.pop(TUNABLE, None)
    peaks.append(result.peak_memory_mb)
    return result.fps


def require_choice() -> None:
    """Raise UsageError if programs cannot request huge pages here, or have them without a request."""
    said = SWITCH.read_text().strip() if SWITCH.exists() else "no such file"
    if "[madvise]" not in said or TUNABLE in os.environ:
        raise UsageError(f"nothing to compare: {SWITCH} says {said}, {TUNABLE} {os.environ.get(TUNABLE)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--network", nargs="+", choices=sorted(UPDATES), default=sorted(UPDATES))
    arguments = parser.parse_args()
    require_choice()
    parts = [f"Parallel PPO, {ENVS} environments x {STEPS} steps, 1 epoch, pages of 4 KB and of 2 MB"]
    data: dict[str, Any] = {}
    for network in arguments.network:
        peaks: dict[str, list[float]] = {"4 KB": [], "2 MB": []}
        comparison = interleave(
            {size: partial(run, network, size == "2 MB", found) for size, found in peaks.items()},
            arguments.rounds,
        )
        memory = ", ".join(f"{statistics.median(found):,.0f} MB ({size})" for size, found in peaks.items())
        parts += [f"{network} network; peak memory {memory}", table(comparison, "4 KB", "timesteps/s")]
        data[network] = {"rates": comparison.rates, "peak_memory_mb": peaks}
    save("huge_pages", "\n\n".join(parts), data)


if __name__ == "__main__":
    main()
