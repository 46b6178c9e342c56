"""Real training of two hosts with one core each over links that are shaped, against what the model says.

What the model is given was measured apart from these runs: the pieces of computing, the all-reduces.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from perf.cluster_scaling.data import link_name
from perf.cluster_scaling.link import Hosts, hosts
from perf.cluster_scaling.model import Computing, Machine, Options, Prediction, Workload, predict
from perf.cluster_scaling.ring import Hop, Points, fit_hop
from perf.training_runs import Result, command, environment, read
from rlcb.paths import PROJECT
from tests.cluster_runs import free_port

NODES = 2
WARM = 2  # updates at the beginning that are not counted
START_SECONDS, RUN_SECONDS, LOOK_SECONDS = 60.0, 240.0, 1.0


@dataclass(frozen=True)
class Case:
    """A run over a link of `rate` bits per second and `delay` seconds one way."""

    algorithm: str
    network: str
    envs: int
    """Of both hosts together, as `batch` is."""
    n_steps: int
    batch: int | None
    epochs: int
    rate: float
    delay: float = 0.0
    overlap: bool = False
    compression: Literal["none", "bf16", "powersgd"] = "none"

    @property
    def name(self) -> str:
        batch = f"minibatches of {self.batch}" if self.batch else "one batch"
        extra = (", overlap" if self.overlap else "") + (
            "" if self.compression == "none" else f", {self.compression}"
        )
        return f"{self.algorithm.upper()}, {self.network}, {self.envs} x {self.n_steps}, {batch}{extra}"

    @property
    def workload(self) -> Workload:
        return Workload(self.algorithm, self.envs // NODES, self.n_steps, self.batch, self.epochs)

    @property
    def options(self) -> Options:
        return Options(overlap=self.overlap, compression=self.compression, reduction="auto")

    def flags(self, updates: int) -> tuple[object, ...]:
        words: tuple[object, ...] = (
            *("--env", "coinrun", "--num-envs", self.envs, "--n-steps", self.n_steps, "--num-threads", 1),
            *("--total-timesteps", self.envs * self.n_steps * updates),
        )
        if self.algorithm == "ppo":
            words += ("--batch-size", self.batch, "--n-epochs", self.epochs)
        return (*words, *(("--num-actors", 1) if self.algorithm == "impala" else ("--num-workers", 1)))

    @property
    def settings(self) -> tuple[str, ...]:
        learners = ("impala.num_learners=1",) if self.algorithm == "impala" else ()
        return (
            *learners,
            f"model.architecture={self.network}",
            "logging.snapshot_seconds=60",  # no copies of all states, as in the prediction
            f"cluster.overlap={str(self.overlap).lower()}",
            f"cluster.compression={self.compression}",
        )


SMALL_BATCH, LARGE_BATCH = 128, 1024
FAST, GIGABIT, SLOW = 1e10, 1e9, 1e8
CASES = (
    *(Case("ppo", "nature", 16, 32, SMALL_BATCH, 2, rate) for rate in (FAST, GIGABIT, SLOW)),
    *(Case("ppo", "impala", 16, 32, SMALL_BATCH, 2, rate) for rate in (FAST, GIGABIT, SLOW)),
    *(Case("ppo", net, 16, 32, SMALL_BATCH, 2, GIGABIT, 1e-3) for net in ("nature", "impala")),
    *(Case("ppo", "nature", 16, 128, LARGE_BATCH, 2, rate) for rate in (GIGABIT, SLOW)),
    *(Case("ppo", "impala", 16, 64, LARGE_BATCH, 1, rate) for rate in (GIGABIT, SLOW)),
    *(Case("a2c", "nature", 16, 16, None, 1, rate) for rate in (GIGABIT, SLOW)),
    Case("a2c", "nature", 16, 16, None, 1, GIGABIT, 1e-3),
    Case("ppo", "nature", 16, 32, SMALL_BATCH, 2, GIGABIT, overlap=True),
    Case("ppo", "nature", 16, 32, SMALL_BATCH, 2, SLOW, compression="bf16"),
    Case("ppo", "nature", 16, 32, SMALL_BATCH, 2, GIGABIT, compression="powersgd"),
    Case("ppo", "nature", 16, 32, SMALL_BATCH, 2, SLOW, compression="powersgd"),
    Case("ppo", "impala", 16, 32, SMALL_BATCH, 2, SLOW, compression="powersgd"),
    Case("a2c", "nature", 16, 16, None, 1, SLOW, compression="powersgd"),
    *(Case("impala", "nature", 16, 32, None, 1, rate) for rate in (FAST, GIGABIT, SLOW)),
    Case("impala", "impala", 16, 32, None, 1, SLOW),
)  # fmt: skip
KEY = ("case", "link")  # what tells rows apart
QUICK_CASES = (CASES[1],)


def predict_case(case: Case, link: Hop, computing: Computing, machine: Machine) -> Prediction:
    """Return the model's prediction for two hosts that share a machine, with the all-reduces `link`."""
    return predict(
        case.workload, NODES, 1, link, computing, machine, case.options, busy_cores=machine.measured_cores
    )


def run_case(case: Case, updates: int) -> tuple[Result, float]:
    """Train on two hosts with a core each; what rank 0 left, and how many cores other programs used."""
    port = free_port()
    with hosts(NODES, case.rate, case.delay) as place, tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        processes = [start(case, place, folder, node, port, updates) for node in range(NODES)]
        try:
            others = wait_for(processes)
            for node, process in enumerate(processes):
                if process.returncode:
                    said = Path(f"{folder}.{node}").read_text().strip()
                    raise RuntimeError(f"{case.name}: {said.splitlines()[-1]}")
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return read(folder), others


def wait_for(processes: Sequence[subprocess.Popen[bytes]]) -> float:
    """Wait until all have ended; returns the cores that programs used that this one did not start."""
    started, own = time.monotonic(), set[int]()
    before, used = other_seconds(own), 0.0
    while any(process.poll() is None for process in processes):
        if time.monotonic() - started > RUN_SECONDS:
            raise RuntimeError(f"a run took longer than {RUN_SECONDS:g} s")
        time.sleep(LOOK_SECONDS)
        now = other_seconds(own)
        used += sum(seconds - before.get(number, 0.0) for number, seconds in now.items())
        before = now
    return used / (time.monotonic() - started)


def other_seconds(own: set[int]) -> dict[int, float]:
    """CPU seconds of every process that this one has not started, by number.

    `own` gains those it has, so that they are known once their parents have ended and they are no longer
    children of this one.
    """
    this, found = psutil.Process(), {}
    own |= {this.pid, *(each.pid for each in this.children(recursive=True))}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if process.pid not in own:
                times = process.cpu_times()
                found[process.pid] = times.user + times.system
    return found


def start(
    case: Case, place: Hosts, folder: Path, node: int, port: int, updates: int
) -> subprocess.Popen[bytes]:
    """Start one host's part of a run on one core; its errors go to a file beside the folder."""
    cores = sorted(os.sched_getaffinity(0))
    told = ("--num-nodes", NODES, "--node-rank", node)
    where = ("--master-addr", place.addresses[0], "--master-port", port)
    flags = (*case.flags(updates), *told, *where)
    words = command(
        f"train.py --algorithm {case.algorithm} --mode distributed", str(folder), flags, case.settings
    )
    words = [*place.enter(node), "taskset", "-c", str(cores[node % len(cores)]), *words]
    with Path(f"{folder}.{node}").open("w") as errors:
        return subprocess.Popen(
            words, cwd=PROJECT, env=environment(), stdout=subprocess.DEVNULL, stderr=errors
        )


def updates_for(prediction: Prediction, seconds: float) -> int:
    """So many that a run counts them for about `seconds`."""
    return WARM + max(4, min(60, round(seconds / prediction.seconds)))


def check(
    case: Case,
    links: Mapping[str, Mapping[str, Points]],
    computing: Computing,
    machine: Machine,
    seconds: float,
    earlier: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Predict a case, then run it: both rates, and where an update's time was expected to go and went.

    What was measured is the median of this run and `earlier` ones of the same case.
    """
    sums = links[link_name(case.rate, case.delay)]
    link = fit_hop(sums["all_reduce"], sums["direct"], case.delay)
    prediction = predict_case(case, link, computing, machine)
    result, others = run_case(case, updates_for(prediction, seconds))
    runs = [*earlier, describe_run(result.rows[WARM:], others)]
    row = {
        "case": case.name,
        "link": link_name(case.rate, case.delay),
        "algorithm": case.algorithm,
        "network": case.network,
        "predicted_fps": prediction.fps,
        "measured_fps": statistics.median(run["fps"] for run in runs),
        "predicted_parts": prediction.parts,
        "runs": runs,
    }
    error = prediction.fps / runs[-1]["fps"] - 1
    print(
        f"  {case.name:<52} {row['link']:<16} predicted {prediction.fps:>7,.0f}, "
        f"measured {runs[-1]['fps']:>7,.0f} timesteps/s ({error:+.0%}); "
        f"others used {others:.2f} cores",
        file=sys.stderr,
        flush=True,
    )
    return row


def describe_run(rows: Sequence[dict[str, Any]], others: float) -> dict[str, Any]:
    """Return medians over the updates that count: timesteps per second and seconds of each phase."""
    phases = [name for name in rows[0] if name.startswith("profile/")]
    return {
        "fps": statistics.median(row["time/fps"] for row in rows),
        "updates": len(rows),
        "other_load": others,
        "phases": {
            name.removeprefix("profile/"): statistics.median(row[name] for row in rows) for name in phases
        },
    }
