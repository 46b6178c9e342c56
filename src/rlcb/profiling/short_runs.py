"""The speed that a training script reaches, measured by a short run of the real script."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config, dump_config, set_value
from rlcb.errors import RunError
from rlcb.machine.profile import Setup, ShortRun
from rlcb.paths import rlcb_command
from rlcb.processes.signals import StopSignal
from rlcb.processes.subprocesses import describe_exit, run_logged
from rlcb.profiling.advice import setup_settings
from rlcb.training.metrics_writer import read_rows

MIN_STEPS = 8
MIN_UPDATES = {"a3c": 8}  # A3C's rows count the updates of all workers, whichever worker writes first
FULL_PIPELINE = 2  # updates beyond the policy lag until the actors are as far ahead as they will be
TIMEOUT_SECONDS = 300.0
IN_ITS_FOLDER: dict[str, None] = {
    "training.duration_hours": None,
    "logging.checkpoint_dir": None,
    "logging.log_dir": None,
}
"""Settings that a measured run drops: it ends after its timesteps and writes only to its own folder."""


def warm_up(config: Config) -> int:
    """Return the number of updates at the start of a run that are not measured."""
    return config.impala.max_policy_lag + FULL_PIPELINE if config.has_actors else 1


def short_config(config: Config, setup: Setup, seconds: float) -> Config:
    """Return a run of about `seconds` seconds with `setup`, otherwise like `config`.

    Rollouts are shortened so that there are several updates. IMPALA's batches are shortened with them. PPO's
    rollouts stay at least one minibatch long, since smaller minibatches need more all-reduces per sample;
    where one such update takes longer than `seconds`, one is measured.
    """
    training, data = config.training, config.model_dump()
    minibatch = training.batch_size if config.algorithm == "ppo" else None
    wanted = setup.predicted_fps * seconds
    steps, min_updates = training.n_steps, MIN_UPDATES.get(config.algorithm, 2)
    while steps > MIN_STEPS and steps * setup.num_envs * min_updates > wanted:
        if minibatch is not None and steps // 2 * setup.num_envs < minibatch:
            min_updates = 1
            break
        steps //= 2
    batch = rollout = steps * setup.num_envs
    if config.has_actors and training.batch_size is not None:
        batch = training.batch_size // training.n_steps * steps
    updates = max(min_updates, round(wanted / batch))
    settings: dict[str, int | None] = {
        **setup_settings(setup, config),
        "training.n_steps": steps,
        "training.total_timesteps": batch * (warm_up(config) + updates),
        "training.batch_size": batch if batch != rollout else minibatch,
        **IN_ITS_FOLDER,
    }
    for key, value in settings.items():
        set_value(data, key, value, "a short run")
    return build_config(data, "a short run")


def run_script(
    config: Config, folder: Path, title: str, stop: StopSignal, on_poll: Callable[[], None], *flags: object
) -> None:
    """Run `rlcb train` with a configuration in `folder`, which must not exist.

    `title` begins the message of an error. Raises RunError, or Interrupted if a signal came.
    """
    parent = folder.parent
    settings, log = parent / "config.yaml", parent / "log"
    settings.write_text(dump_config(config), encoding="utf-8")
    choice = ("--algorithm", config.algorithm, "--mode", config.mode)
    words = rlcb_command("train", *choice, "--config", settings, "--output-dir", folder, *flags)
    code = run_logged(words, log, stop, lambda pid: None, on_poll)
    stop.check()
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise RunError(f"{title} failed ({describe_exit(code) or lines[-1]})")


def short_run(
    config: Config, setup: Setup, seconds: float, stop: StopSignal, on_poll: Callable[[], None]
) -> ShortRun:
    """Run the script of config's algorithm and mode with a setup, for about `seconds` seconds of training.

    Raises RunError or Interrupted.
    """
    start, run = time.monotonic(), short_config(config, setup, seconds)
    title = f"a short run of {config.algorithm} {config.mode}"

    def poll() -> None:
        on_poll()
        if time.monotonic() - start > TIMEOUT_SECONDS:
            raise RunError(f"{title} took longer than {TIMEOUT_SECONDS:g} s")

    with tempfile.TemporaryDirectory(prefix="profile-") as parent:
        folder = Path(parent) / "run"
        run_script(run, folder, title, stop, poll)
        return read_run(folder, run, setup, time.monotonic() - start)


def read_run(folder: Path, config: Config, setup: Setup, seconds: float) -> ShortRun:
    """Read the results of a short run; `seconds` passed from its start to its end."""
    (path,) = folder.glob("logs/*/metrics.jsonl")
    rows = read_rows(path)
    record = json.loads((folder / "benchmark_metrics.json").read_text(encoding="utf-8"))
    first, last = rows[min(warm_up(config), len(rows) - 1) - 1], rows[-1]
    measured_seconds = last["time/elapsed_seconds"] - first["time/elapsed_seconds"]
    timesteps = last["timesteps"] - first["timesteps"]
    if measured_seconds <= 0 or timesteps <= 0:
        raise RunError("a short run ended before its speed could be measured")
    return ShortRun(
        setup=setup,
        fps=timesteps / measured_seconds,
        n_steps=config.training.n_steps,
        batch_size=config.training.batch_size,
        updates=last["update"] - first["update"],
        startup_seconds=round(seconds - last["time/elapsed_seconds"], 2),
        shares={phase: part["share"] for phase, part in record["time_breakdown"].items()},
    )
