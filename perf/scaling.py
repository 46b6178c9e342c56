"""Speed of parallel PPO by number of workers on this machine, and a prediction for more cores.

    venv/bin/python -m perf.scaling [--network nature]

Measured: whole runs with W = 1 .. cores workers of one thread each, W runs side by side that do not talk to
each other, and gloo's all-reduce between the processes of this machine. The model has three parts:

    seconds per timestep = compute * (1 + beta * (W - 1)) / W  +  sync(W) / timesteps

compute, of one worker alone, is its measured seconds per timestep. beta is what each further busy core costs
the others (memory bandwidth, shared caches, clock): from W runs side by side against one. sync is the number
of minibatches times an all-reduce of the gradient, latency * 2 (W - 1) + bytes / bandwidth * 2 (W - 1) / W as
for a ring, with latency and bandwidth fitted to measured messages of two sizes, plus the measured waiting of
workers for the slowest one. Predictions for more cores assume that beta stays what it is, which real machines
only do until their memory is saturated: read them as an upper bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from perf.measure import RESULTS, save
from perf.training_runs import Result, command, environment, read, train
from rlcb import cpu

NUM_ENVS, N_STEPS, BATCH, EPOCHS = 32, 128, 1024, 1
PREDICTED = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Model:
    """The fitted parts of the model; seconds, and bytes per second."""

    compute: float
    beta: float
    latency: float
    bandwidth: float
    wait: float
    """Seconds per timestep that workers wait for the slowest, at the largest W that was measured."""
    gradient_bytes: int

    def seconds(self, workers: int) -> float:
        """Return the predicted seconds per timestep."""
        compute = self.compute * (1 + self.beta * (workers - 1)) / workers
        if workers == 1:
            return compute
        minibatches = EPOCHS * NUM_ENVS * N_STEPS / BATCH
        reduce = self.latency * 2 * (workers - 1)
        reduce += self.gradient_bytes / self.bandwidth * 2 * (workers - 1) / workers
        return compute + minibatches * reduce / (NUM_ENVS * N_STEPS) + self.wait


def flags(updates: int) -> tuple[object, ...]:
    return (
        *("--env", "coinrun", "--num-envs", NUM_ENVS, "--n-steps", N_STEPS, "--batch-size", BATCH),
        *("--n-epochs", EPOCHS, "--num-threads", 1, "--total-timesteps", NUM_ENVS * N_STEPS * updates),
    )


def parallel(network: str, workers: int, updates: int) -> Result:
    settings = (f"model.architecture={network}",)
    return train("train_ppo_parallel.py", (*flags(updates), "--num-workers", workers), settings)


def side_by_side(network: str, count: int, updates: int) -> float:
    """Return the mean timesteps per second of `count` sequential runs at the same time, one per core."""
    with tempfile.TemporaryDirectory() as parent:
        folders = [Path(parent) / str(index) for index in range(count)]
        processes = []
        for core, folder in zip(sorted(os.sched_getaffinity(0)), folders, strict=False):
            words = command(
                "train_ppo_sequential.py", str(folder), flags(updates), (f"model.architecture={network}",)
            )
            words = ["taskset", "-c", str(core), *words]
            processes.append(subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL))
        if any(process.wait() for process in processes):
            raise RuntimeError("a run side by side failed")
        return statistics.mean(read(folder).fps for folder in folders)


def all_reduce_seconds(workers: int, size: int) -> float:
    """Return the median seconds of a gloo all-reduce of `size` bytes between processes of this machine."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    words += ["-m", "perf.scaling", "--all-reduce", str(size)]
    result = subprocess.run(words, env=environment(), check=True, capture_output=True, text=True)
    return float(result.stdout.split()[-1])


def time_all_reduce(size: int) -> None:
    """The body of a process that `all_reduce_seconds` starts."""
    import torch
    import torch.distributed as dist

    from rlcb.parallel.gloo import use_loopback

    torch.set_num_threads(1)
    use_loopback()
    dist.init_process_group("gloo")
    message, seconds = torch.zeros(size // 4), []
    for _ in range(60):
        start = time.perf_counter()
        dist.all_reduce(message)
        seconds.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(statistics.median(seconds[10:]))
    dist.destroy_process_group()


def fit(network: str, cores: int, alone: Result, largest: Result, updates: int) -> Model:
    """The model's parts from measurements; `alone` has one worker, `largest` one a core."""
    compute = 1 / alone.fps
    together = side_by_side(network, cores, updates)
    apart = side_by_side(network, 1, updates)
    beta = max(0.0, (apart / together - 1) / (cores - 1))
    small, large = 4 * 1024, 8 * 2**20
    small_seconds, large_seconds = all_reduce_seconds(cores, small), all_reduce_seconds(cores, large)
    latency = small_seconds / (2 * (cores - 1))
    bandwidth = (large - small) * 2 * (cores - 1) / cores / max(1e-9, large_seconds - small_seconds)
    parameters = {"impala": 626_256, "nature": 342_448}[network]
    wait = largest.shares["wait"] / largest.fps
    return Model(compute, beta, latency, bandwidth, wait, 4 * parameters)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", default="nature", choices=("impala", "nature"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--all-reduce", type=int, metavar="BYTES", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.all_reduce:
        time_all_reduce(options.all_reduce)
        return
    cores = cpu.usable_cores()
    if cores < 2:
        sys.exit("perf.scaling needs at least two cores")
    updates = 3 if options.network == "impala" else 6
    measured: dict[int, list[Result]] = {workers: [] for workers in range(1, cores + 1)}
    for number in range(options.rounds):
        for workers, results in measured.items():
            results.append(parallel(options.network, workers, updates))
            print(
                f"  round {number + 1}  {workers} worker(s)  {results[-1].fps:,.0f} timesteps/s", flush=True
            )
    middle = {
        workers: sorted(results, key=lambda each: each.fps)[len(results) // 2]
        for workers, results in measured.items()
    }
    model = fit(options.network, cores, middle[1], middle[cores], updates)
    report(options.network, cores, middle, model)


def report(network: str, cores: int, middle: dict[int, Result], model: Model) -> None:
    one = middle[1].fps
    lines = [
        f"Parallel PPO on coinrun, {network} network, {NUM_ENVS} environments x {N_STEPS} steps, "
        f"{EPOCHS} epoch",
        "",
        "| workers | measured, timesteps/s | predicted, timesteps/s | predicted efficiency |",
        "|---|---|---|---|",
    ]
    for workers in sorted({*middle, *PREDICTED}):
        seen = f"{middle[workers].fps:,.0f}" if workers in middle else "not measured"
        predicted = 1 / model.seconds(workers)
        lines.append(f"| {workers} | {seen} | {predicted:,.0f} | {predicted / one / workers:.0%} |")
    lines += [
        "",
        f"Fitted: compute {model.compute * 1e3:.3f} ms a timestep; "
        f"each further busy core costs {model.beta:.1%}; "
        f"all-reduce latency {model.latency * 1e6:.0f} us, {model.bandwidth / 1e9:.2f} GB/s; "
        f"waiting {model.wait * 1e3:.4f} ms a timestep.",
        f"Measured up to {cores} workers on this machine; every other figure is computed.",
    ]
    data = {
        "measured": {str(workers): result.fps for workers, result in middle.items()},
        "model": asdict(model),
    }
    save(f"scaling_{network}", "\n".join(lines), data)
    draw(network, middle, model)


def draw(network: str, middle: dict[int, Result], model: Model) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    workers = list(range(1, PREDICTED[-1] + 1))
    predicted = [1 / model.seconds(each) for each in workers]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    ideal = [middle[1].fps * each for each in workers]
    axes.plot(workers, ideal, color="0.7", linewidth=1, linestyle=":")
    axes.plot(workers, predicted, color="#0072B2", linewidth=2)
    axes.plot(list(middle), [each.fps for each in middle.values()], "o", color="#D55E00", zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(PREDICTED, [str(each) for each in PREDICTED])
    ticks = [middle[1].fps * each for each in (1, *PREDICTED)]
    axes.set_yticks(ticks, [f"{each:,.0f}" for each in ticks])
    axes.minorticks_off()
    axes.annotate(
        "ideal", (workers[40], ideal[40]), (-8, 4), textcoords="offset points", color="0.5", ha="right"
    )
    axes.annotate(
        "predicted", (workers[40], predicted[40]), (0, -16), textcoords="offset points", color="#0072B2"
    )
    axes.annotate("measured", (1, middle[1].fps), (10, -4), textcoords="offset points", color="#D55E00")
    axes.set_xlabel("workers, one core each")
    axes.set_ylabel("timesteps per second")
    axes.set_title(f"Parallel PPO, {network} network, {NUM_ENVS} x {N_STEPS} rollouts", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / f"scaling_{network}.png", dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
