"""What a training script really reaches: short runs of it, as a user would start them."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config, dump_config, set_value
from rlcb.errors import RunError
from rlcb.machine.profile import Reached, Setup
from rlcb.paths import PROJECT
from rlcb.processes.subprocesses import Stop, describe_exit, run_logged
from rlcb.profiling.advice import settings_of
from rlcb.training.metrics_writer import read_rows

MIN_STEPS = 8
MIN_UPDATES = {"a3c": 8}  # its rows count what all workers have done, whenever the first one writes one
FULL_PIPELINE = 2  # updates, beside the policy lag, after which actors are no further ahead than later
TIMEOUT_SECONDS = 300.0
# What a run that is only measured does not have: another end, files elsewhere.
IN_ITS_FOLDER: dict[str, None] = {
    "training.duration_hours": None,
    "logging.checkpoint_dir": None,
    "logging.log_dir": None,
}


def warm_up(config: Config) -> int:
    """Updates of a run that do not count."""
    return config.impala.max_policy_lag + FULL_PIPELINE if config.has_actors else 1


def short_config(config: Config, setup: Setup, seconds: float) -> Config:
    """A run of so many seconds that differs from config's in its length and, so that there are several
    updates, in the steps of a rollout. Its environments and processes are those of `setup`.

    A rollout of PPO stays at least one minibatch long, since a smaller one would be another workload: with
    more sums, copies and barriers to a sample. Where an update of that size takes longer than `seconds`, one
    is counted. A batch of IMPALA is shortened with its unrolls.
    """
    training, data = config.training, config.model_dump()
    minibatch = training.batch_size if config.algorithm == "ppo" else None
    wanted = setup.predicted_fps * seconds
    steps, least = training.n_steps, MIN_UPDATES.get(config.algorithm, 2)
    while steps > MIN_STEPS and steps * setup.num_envs * least > wanted:
        if minibatch is not None and steps // 2 * setup.num_envs < minibatch:
            least = 1
            break
        steps //= 2
    batch = rollout = steps * setup.num_envs
    if config.has_actors and training.batch_size is not None:
        batch = training.batch_size // training.n_steps * steps
    updates = max(least, round(wanted / batch))
    settings: dict[str, int | None] = {
        **settings_of(setup, config),
        "training.n_steps": steps,
        "training.total_timesteps": batch * (warm_up(config) + updates),
        "training.batch_size": batch if batch != rollout else minibatch,
        **IN_ITS_FOLDER,
    }
    for key, value in settings.items():
        set_value(data, key, value, "a short run")
    return build_config(data, "a short run")


def short_run(
    config: Config, setup: Setup, seconds: float, stop: Stop, on_poll: Callable[[], None]
) -> Reached:
    """Run the script of config's algorithm and mode with a setup, for about so many seconds of training.

    Raises RunError or Interrupted.
    """
    began, run = time.monotonic(), short_config(config, setup, seconds)

    def poll() -> None:
        on_poll()
        if time.monotonic() - began > TIMEOUT_SECONDS:
            raise RunError(f"a short run of {name} took longer than {TIMEOUT_SECONDS:g} s")

    name = f"train_{config.algorithm}_{config.mode}.py"
    with tempfile.TemporaryDirectory(prefix="profile-") as parent:
        folder, settings, log = Path(parent) / "run", Path(parent) / "config.yaml", Path(parent) / "log"
        settings.write_text(dump_config(run), encoding="utf-8")
        words = [sys.executable, str(PROJECT / name), "--config", str(settings), "--output-dir", str(folder)]
        code = run_logged(words, log, stop, lambda pid: None, poll)
        took = time.monotonic() - began
        stop.check()
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RunError(f"a short run of {name} failed ({describe_exit(code) or lines[-1]})")
        return read_run(folder, run, setup, took)


def read_run(folder: Path, config: Config, setup: Setup, took: float) -> Reached:
    """What a run with a setup left; `took` are the seconds from its start to its end."""
    (path,) = folder.glob("logs/*/metrics.jsonl")
    rows = read_rows(path)
    record = json.loads((folder / "benchmark_metrics.json").read_text(encoding="utf-8"))
    first, last = rows[min(warm_up(config), len(rows) - 1) - 1], rows[-1]
    seconds = last["time/elapsed_seconds"] - first["time/elapsed_seconds"]
    timesteps = last["timesteps"] - first["timesteps"]
    if seconds <= 0 or timesteps <= 0:
        raise RunError("a short run ended before its speed could be told")
    return Reached(
        setup=setup,
        fps=timesteps / seconds,
        n_steps=config.training.n_steps,
        batch_size=config.training.batch_size,
        updates=last["update"] - first["update"],
        startup_seconds=round(took - last["time/elapsed_seconds"], 2),
        shares={phase: part["share"] for phase, part in record["time_breakdown"].items()},
    )
