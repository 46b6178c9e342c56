"""Measure a profile with a progress display, reuse an earlier one, and write its files."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rlcb.config.config import Config
from rlcb.config.settings import EnvConfig
from rlcb.errors import RunError, UsageError
from rlcb.files import write_atomically
from rlcb.machine.efficiency import find_profile
from rlcb.machine.profile import Profile, ShortRun, describe_env, env_key, read_profile, write_profile
from rlcb.processes.machine_load import busy_warning, measure_load
from rlcb.processes.machine_lock import Lock, machine_lock_path
from rlcb.processes.signals import StopSignal
from rlcb.profiling.advice import AlgorithmMode, recommend, result_of, with_limits
from rlcb.profiling.measure import Effort, MachineMeasurement, Show
from rlcb.profiling.report import describe_profile
from rlcb.profiling.short_runs import short_run

LINE_SECONDS = 10.0
RUN_WEIGHT = 0.3  # duration of a short run, divided by that of the first measurement
AGAIN_WEIGHT = 0.3  # duration of a measurement after a run, divided by that of the first
AROUND = 2  # measurements that a run is compared with: right before and right after it
BUSY = "a profile and other measurements at once would slow each other down"
BAR = "{percentage:3.0f}%|{bar}| {desc}"


class ProfileProgress:
    """The progress display of profile_cpu.py: a bar on a terminal, else a line every LINE_SECONDS."""

    def __init__(self) -> None:
        self._next_line = 0.0
        self._bar: tqdm[Any] | None = None
        if sys.stderr.isatty():
            tqdm.set_lock(threading.RLock())
            self._bar = tqdm(total=1.0, bar_format=BAR, dynamic_ncols=True, leave=False)

    def show(self, share: float, text: str) -> None:
        """Show the share of all work that is done, from 0 to 1, and what is measured now."""
        if self._bar is not None:
            self._bar.n = max(self._bar.n, min(1.0, share))
            self._bar.set_description_str(text, refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            print(f"{share:4.0%} {text}", flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def reuse(folder: Path, configs: dict[AlgorithmMode, Config], envs: list[EnvConfig]) -> tuple[Path, Profile]:
    """Return the newest profile in `folder` that holds, and its path, with results for these configurations.

    Short runs are kept if their number of epochs still holds. Raises UsageError if no profile holds or if one
    of `envs` was not measured.
    """
    found = find_profile(folder, next(iter(configs.values())))
    if not isinstance(found, tuple):
        why = found or f"there is no profile in {folder}"
        raise UsageError(f"--reuse: {why}; run profile_cpu.py without it")
    path, profile = found
    known = {each.key for each in profile.environments}
    for env in envs:
        if env_key(env) not in known:
            raise UsageError(
                f"--reuse: {path} has not measured {describe_env(env_key(env))}; "
                "run profile_cpu.py without it"
            )
    before = {(each.algorithm, each.mode): each for each in profile.results}
    results = []
    for pair, config in configs.items():
        old = before.get(pair)
        same = old is not None and old.epochs == config.training.n_epochs
        results.append(result_of(profile, config, old.reached if old is not None and same else None))
    return path, profile.model_copy(update={"results": tuple(results)})


def measure(
    configs: dict[AlgorithmMode, Config],
    envs: list[EnvConfig],
    effort: Effort,
    folder: Path,
    stop: StopSignal,
    progress: ProfileProgress,
) -> Profile:
    """Measure the machine, and run each training script for a short time.

    A failed short run is reported on stderr; its result has `reached` None. Raises UsageError, RunError or
    Interrupted.
    """
    lock = Lock(machine_lock_path(), BUSY, "profile", for_all_users=True)
    lock.acquire(folder)
    try:
        load = measure_load()
        warning = busy_warning(load)
        if warning is not None:
            print(f"{warning}: the measured speeds will be too low", file=sys.stderr)
        others = load["cpu_percent"]
        whole = 1 + len(configs) * (RUN_WEIGHT + AGAIN_WEIGHT)
        machine = MachineMeasurement(next(iter(configs.values())), envs, effort, stop.check)
        machine.measure(lambda share, text: progress.show(share / whole, text))

        def show(share: float, text: str) -> None:
            progress.show((1 + share) / whole, text)

        reached = short_runs(configs, machine, others, effort, stop, show)
        profile = machine.profile(others)
    finally:
        lock.release()
    results = tuple(result_of(profile, config, reached[pair]) for pair, config in configs.items())
    return profile.model_copy(update={"results": results})


def short_runs(
    configs: dict[AlgorithmMode, Config],
    machine: MachineMeasurement,
    others: float | None,
    effort: Effort,
    stop: StopSignal,
    show: Show,
) -> dict[AlgorithmMode, ShortRun | None]:
    """Run each training script for a short time with the recommended setup; None stands for a failed run.

    The parts of a timestep are measured after each run, so that every run is compared with the limit of its
    own minutes. `others` is the CPU time of other programs. `show` receives the work that is done, as a
    multiple of the machine's first measurement, and what is measured now.
    """
    reached: dict[AlgorithmMode, ShortRun | None] = {}
    profile = machine.profile(others)
    setups = {pair: recommend(profile, config) for pair, config in configs.items()}
    threads = {1, *(setups[pair].threads for pair in configs if pair[1] == "sequential")}
    for number, (pair, config) in enumerate(configs.items()):
        begun, done, name = time.monotonic(), number * (RUN_WEIGHT + AGAIN_WEIGHT), " ".join(pair)

        def poll(begun: float = begun, done: float = done, name: str = name) -> None:
            show(done, f"a short run of {name}, {time.monotonic() - begun:.0f} s")

        def again(share: float, text: str, done: float = done) -> None:
            show(done + RUN_WEIGHT + AGAIN_WEIGHT * share, f"again: {text}")

        poll()
        try:
            run = short_run(config, setups[pair], effort.run_seconds, stop, poll)
        except RunError as error:
            reached[pair] = None
            tqdm.write(f"warning: {error}", file=sys.stderr)
            continue
        machine.measure_parts(threads, again)
        reached[pair] = with_limits(run, machine.profile(others, AROUND), config)
    return reached


def save(profile: Profile, configs: dict[AlgorithmMode, Config], folder: Path) -> Path:
    """Write the profile as JSON, text and picture, and return the path of the JSON file.

    Environments that only an earlier profile of this machine measured are copied into the new one.
    """
    from rlcb.plots.save import save_figure
    from rlcb.profiling.roofline import draw_roofline

    path = write_profile(with_other_games(profile, folder / profile.file_name), folder)
    try:
        write_atomically(path.with_suffix(".txt"), f"{describe_profile(profile, configs)}\n".encode())
    except OSError as error:
        raise RunError(f"cannot write {path.with_suffix('.txt')}: {error.strerror or error}") from error
    if profile.layers:
        save_figure(draw_roofline(profile), path.with_suffix(".png"))
    return path


def with_other_games(profile: Profile, before: Path) -> Profile:
    """Return the profile with the environments that only the earlier profile at `before` has.

    The earlier profile counts only if it was made on the same machine with the same torch.
    """
    try:
        old = read_profile(before)
    except UsageError:
        return profile  # no earlier profile, or one in an old format
    same = ("cpu_model", "identity", "flags", "usable_cores", "torch")
    if any(getattr(old.machine, name) != getattr(profile.machine, name) for name in same):
        return profile
    known = {each.key for each in profile.environments}
    kept = [each for each in old.environments if each.key not in known]
    return profile.model_copy(update={"environments": (*profile.environments, *kept)})
