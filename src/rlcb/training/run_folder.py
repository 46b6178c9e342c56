"""The folder of a run: where its files lie, who may write into it, and how a resumed run finds its place."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
import shutil
import socket
import time
from pathlib import Path
from typing import Any

from rlcb.config.config import Config, flat_settings
from rlcb.config.yaml_file import build_config, dump_config, read_config_file
from rlcb.errors import UsageError
from rlcb.files import write_atomically

logger = logging.getLogger(__name__)

RESULT_FILES = ("benchmark_metrics.json", "training_summary.json", "metrics.json")
CONFIG_FILE = "config.yaml"
LOCK_FILE = ".lock"
# What lies beside the runs of a study, in the folder above theirs.
STUDY_FILE, STUDY_LOG_FILE, STUDY_CONFIGS = "study.yaml", "study_log.jsonl", "configs"
CHECKPOINT_NAME = re.compile(r"[a-z0-9]+_(sequential|parallel|distributed)_(final|best|step_\d+)\.pt")
LOG_NAME = re.compile(r"[A-Z0-9]+_(Sequential|Parallel|Distributed)")


class RunFolder:
    """Paths of a run. Making the object touches nothing on disk."""

    def __init__(self, root: Path | None, config: Config) -> None:
        """Without `root`, `claim` makes runs/<algorithm>_<mode>_<env>_seed<seed>_<time>."""
        self.automatic = root is None
        self.root = root or Path("runs") / automatic_name(config)
        self.stem = f"{config.algorithm}_{config.mode}"
        self.log_name = f"{config.algorithm.upper()}_{config.mode.capitalize()}"
        self.checkpoint_dir = config.logging.checkpoint_dir
        self.log_dir = config.logging.log_dir
        self._lock: int | None = None

    @property
    def config_path(self) -> Path:
        return self.root / CONFIG_FILE

    @property
    def checkpoints(self) -> Path:
        return Path(self.checkpoint_dir or self.root / "checkpoints")

    @property
    def logs(self) -> Path:
        return Path(self.log_dir or self.root / "logs") / self.log_name

    @property
    def rows(self) -> Path:
        return self.logs / "metrics.jsonl"

    def checkpoint(self, kind: str) -> Path:
        """The path of a checkpoint; `kind` is `final`, `best` or `step_<n>`."""
        return self.checkpoints / f"{self.stem}_{kind}.pt"

    def occupied_by(self) -> Path | None:
        """A file of an earlier run in this folder, None if there is none."""
        candidates = [self.config_path, self.rows, *(self.root / name for name in RESULT_FILES)]
        candidates += self.checkpoints.glob(f"{self.stem}_*.pt")
        return next((path for path in candidates if path.exists()), None)

    def refuse_if_occupied(self) -> None:
        occupant = self.occupied_by()
        if occupant is not None:
            raise UsageError(
                f"{self.root} already holds a run ({occupant}); use --resume to continue it, "
                "--overwrite to replace it, or another --output-dir"
            )

    def take(self) -> None:
        """Have the folder for this process alone, until `close` or the end of the process.

        Raises UsageError if another run has it, or if it cannot be written to.
        """
        if self._lock is not None:
            return
        path = self.root / LOCK_FILE
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                lock_or_refuse(descriptor, path)
            except UsageError:
                os.close(descriptor)
                raise
            self._lock = descriptor
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        except OSError as error:
            raise cannot_write(error, self.root) from None

    def close(self) -> None:
        """Leave the folder to others."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def claim(self, config: Config, overwrite: bool) -> None:
        """Make the folder and write config.yaml; of two processes that claim one folder, the second is
        refused."""
        try:
            if self.automatic:
                self._make_unique_root()
            self.take()
            if overwrite and not self.automatic:
                self.clear()
            self.refuse_if_occupied()
            for path in (self.checkpoints, self.logs):
                path.mkdir(parents=True, exist_ok=True)
                if not os.access(path, os.W_OK):
                    raise UsageError(f"cannot write to {path}: no permission")
            write_atomically(self.config_path, dump_config(with_absolute_places(config)).encode())
        except OSError as error:
            raise cannot_write(error, self.root) from None

    def begins_anew(self) -> bool:
        """Whether this is a run that ended before it had a checkpoint. Raises UsageError where they are
        gone."""
        if not self.config_path.exists():
            return False
        if not self.checkpoints.is_dir():
            raise UsageError(
                f"cannot resume: the folder of the run's checkpoints, {self.checkpoints}, is gone"
            )
        return True

    def _make_unique_root(self) -> None:
        """Make the folder, with a number behind its name if another run took that name in the same second."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        name, number = self.root.name, 1
        while True:
            try:
                self.root.mkdir()
                return
            except FileExistsError:
                number += 1
                self.root = self.root.with_name(f"{name}_{number}")

    def reopen(self, config: Config, checkpoint_path: Path, timesteps: int) -> None:
        """Prepare the folder of a run that goes on: it has not ended, so nothing in it may say that it
        has."""
        self.clear_results()
        if checkpoint_path == self.checkpoint("final"):
            checkpoint_path.replace(self.checkpoint(f"step_{timesteps}"))
        write_atomically(self.config_path, dump_config(with_absolute_places(config)).encode())

    def clear(self) -> None:
        """Delete the files of earlier runs in this folder, of any algorithm and mode, and nothing else.

        A folder for checkpoints or logs elsewhere may be that of other runs as well: only files of this
        algorithm and mode are deleted there.
        """
        self.clear_results()
        for path in self.checkpoints.glob("*.pt" if self.checkpoint_dir is None else f"{self.stem}_*.pt"):
            if CHECKPOINT_NAME.fullmatch(path.name):
                path.unlink()
        for path in (self.root / "evaluation").glob("*.json"):
            path.unlink()
        for path in self.logs.parent.glob(f"{'*' if self.log_dir is None else self.log_name}/metrics.jsonl"):
            if LOG_NAME.fullmatch(path.parent.name):
                shutil.rmtree(path.parent)
        self.config_path.unlink(missing_ok=True)

    def clear_results(self) -> None:
        """Delete what states how a run ended, for a run that goes on has not ended, and what one that was
        killed had not written to its end."""
        for name in RESULT_FILES:
            (self.root / name).unlink(missing_ok=True)
        checkpoints = "*" if self.checkpoint_dir is None else f"{self.stem}_*"
        unfinished = itertools.chain(
            *(self.root.glob(f".{name}.*.tmp") for name in (*RESULT_FILES, CONFIG_FILE)),
            self.checkpoints.glob(f".{checkpoints}.pt.*.tmp"),
            self.logs.glob(f".{self.rows.name}.*.tmp"),
        )
        for path in unfinished:
            path.unlink(missing_ok=True)


def lock_or_refuse(descriptor: int, path: Path) -> None:
    """Lock an open file, which the system frees when this process ends, in whatever way. Raises UsageError
    if another process has it, which says in the file who it is."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 1000, 0).decode(errors="replace") or "another process"
        raise UsageError(
            f"{path.parent} is in use by a run that goes on ({holder}): stop it or wait for its end; "
            f"if there is none, delete {path}"
        ) from None
    except OSError as error:  # a file system without locks
        logger.warning("cannot lock %s (%s): only one run may use it", path.parent, error.strerror or error)


def cannot_write(error: OSError, root: Path) -> UsageError:
    """The refusal of a folder that cannot be made or written to."""
    why = "it is a file, not a folder" if isinstance(error, FileExistsError) else error.strerror or error
    return UsageError(f"cannot write to {error.filename or root}: {why}")


def with_absolute_places(config: Config) -> Config:
    """The same, with the folders that it names as they are seen from any working folder."""
    given = {key: getattr(config.logging, key) for key in PLACES}
    absolute = {key: str(Path(value).absolute()) for key, value in given.items() if value is not None}
    return config.model_copy(update={"logging": config.logging.model_copy(update=absolute)})


def automatic_name(config: Config) -> str:
    env = re.sub(r"[^\w.-]", "-", config.env.id)
    time_now = time.strftime("%Y%m%d-%H%M%S")
    return f"{config.algorithm}_{config.mode}_{env}_seed{config.training.seed}_{time_now}"


PLACES = ("checkpoint_dir", "log_dir")
# What a resumed run may change: how long it goes on, what it puts up with, how it is checked and logged (not
# where), where its rollouts lie, on what hardware and network.
RESUMABLE = (
    *("training.total_timesteps", "training.duration_hours", "hardware.", "logging."),
    *("parallel.timeout_seconds", "parallel.check_every", "parallel.buffer"),  # and parallel.buffer_dir
    *("impala.max_actor_restarts", "impala.actor_nice", "impala.check_unwritten"),
    *("cluster.master_", "cluster.timeout_seconds", "cluster.network_interface"),
)


def config_of_run(root: Path) -> Config:
    """The configuration that a run was started with. Raises UsageError if the folder holds no run."""
    path = root / CONFIG_FILE
    if not path.exists():
        raise UsageError(f"{root} holds no run to resume (no {CONFIG_FILE})")
    data = read_config_file(path)
    if "algorithm" not in data or "mode" not in data:
        raise UsageError(f"{path} is empty or damaged: every run's configuration has algorithm and mode")
    return build_config(data, str(path))


def config_of_checkpoint(path: Path, checkpoint: dict[str, Any]) -> Config:
    """Return the configuration that a checkpoint was saved with, whatever config.yaml says now.

    Raises UsageError for a checkpoint of another algorithm or mode under the name of this run's.
    """
    saved = f"{checkpoint['algorithm']}_{checkpoint['mode']}"
    if not path.name.startswith(f"{saved}_"):
        raise UsageError(f"{path} is a checkpoint of {saved.replace('_', ' ')}: it was renamed or replaced")
    return build_config(checkpoint["config"], str(path))


def require_same_run(before: Config, now: Config, compare_places: bool = True) -> None:
    """Raise UsageError if a resumed run would not be the same run: it names each setting with both values.

    `before` may name folders relative to the working directory that the run was started in, as checkpoints
    do. `compare_places` is then False.
    """
    old, new = (flat_settings(with_absolute_places(each)) for each in (before, now))
    places = [f"logging.{key}" for key in PLACES] if compare_places else []
    changed = [
        f"{key} = {old.get(key)!r} in the run, {new.get(key)!r} now"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and (key in places or not key.startswith(RESUMABLE))
    ]
    if changed:
        raise UsageError(f"cannot resume with other settings: {'; '.join(changed)}")
