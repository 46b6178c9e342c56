"""The folder of a run: the paths of its files, its lock, and the checks before a run starts or resumes."""

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
TRACKING_FOLDER = "tracking"  # of training/tracking.py
# Files of a study, in the folder that holds the folders of its runs.
STUDY_FILE, STUDY_LOG_FILE, STUDY_CONFIGS = "study.yaml", "study_log.jsonl", "configs"
CHECKPOINT_NAME = re.compile(r"[a-z0-9]+_(sequential|parallel|distributed)_(final|best|step_\d+)\.pt")
LOG_NAME = re.compile(r"[A-Z0-9]+_(Sequential|Parallel|Distributed)")


class RunFolder:
    """The paths of a run's files, and the operations on its folder.

    The constructor does not touch the disk.
    """

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
        """The file with the run's configuration."""
        return self.root / CONFIG_FILE

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return Path(self.checkpoint_dir or self.root / "checkpoints")

    @property
    def logs(self) -> Path:
        """The folder of metrics.jsonl and TensorBoard's event files."""
        return Path(self.log_dir or self.root / "logs") / self.log_name

    @property
    def rows(self) -> Path:
        """The file metrics.jsonl."""
        return self.logs / "metrics.jsonl"

    def checkpoint(self, kind: str) -> Path:
        """Return the path of a checkpoint; `kind` is `final`, `best` or `step_<n>`."""
        return self.checkpoints / f"{self.stem}_{kind}.pt"

    def occupied_by(self) -> Path | None:
        """Return a file of an earlier run in this folder, or None if there is none."""
        candidates = [self.config_path, self.rows, *(self.root / name for name in RESULT_FILES)]
        candidates += self.checkpoints.glob(f"{self.stem}_*.pt")
        return next((path for path in candidates if path.exists()), None)

    def refuse_if_occupied(self) -> None:
        """Raise UsageError if the folder holds an earlier run."""
        occupant = self.occupied_by()
        if occupant is not None:
            raise UsageError(
                f"{self.root} already holds a run ({occupant}); use --resume to continue it, "
                "--overwrite to replace it, or another --output-dir"
            )

    def refuse_if_in_use(self) -> None:
        """Raise UsageError if another run holds the lock of the folder.

        Takes no lock, so a command can refuse before it loads anything; `lock` decides who gets the folder.
        """
        path = self.root / LOCK_FILE
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:  # no run has been here, or `lock` will say why the file cannot be opened
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use(descriptor, path) from None
        except OSError:  # a file system without locks, of which `lock` warns
            pass
        finally:
            os.close(descriptor)

    def lock(self) -> None:
        """Lock the folder for this process, until `close` or the end of the process; make it if missing.

        Raises UsageError if another run holds the lock, or if the folder cannot be written to.
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
        """Release the lock of the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def claim(self, config: Config, overwrite: bool) -> None:
        """Make and lock the folder of a new run, and write config.yaml.

        With `overwrite`, delete an earlier run first. Raises UsageError if the folder holds another run, is
        locked or cannot be written to.
        """
        try:
            if self.automatic:
                self._make_unique_root()
            self.lock()
            if overwrite and not self.automatic:
                self.clear()
            self.refuse_if_occupied()
            for path in (self.checkpoints, self.logs):
                path.mkdir(parents=True, exist_ok=True)
                if not os.access(path, os.W_OK):
                    raise UsageError(f"cannot write to {path}: no permission")
            write_atomically(self.config_path, dump_config(with_absolute_folders(config)).encode())
        except OSError as error:
            raise cannot_write(error, self.root) from None

    def ended_before_checkpoint(self) -> bool:
        """Return whether the folder holds a run; call this if it has no checkpoint.

        Raises UsageError if the folder of the run's checkpoints is gone.
        """
        if not self.config_path.exists():
            return False
        if not self.checkpoints.is_dir():
            raise UsageError(
                f"cannot resume: the folder of the run's checkpoints, {self.checkpoints}, is gone"
            )
        return True

    def _make_unique_root(self) -> None:
        """Make the folder; add a number to its name if a run of the same second has that name."""
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
        """Prepare the folder for resuming: delete results, and write config.yaml with the new settings.

        A final checkpoint is renamed to `step_<timesteps>`, because it is no longer the final one.
        """
        self.clear_results()
        if checkpoint_path == self.checkpoint("final"):
            checkpoint_path.replace(self.checkpoint(f"step_{timesteps}"))
        write_atomically(self.config_path, dump_config(with_absolute_folders(config)).encode())

    def clear(self) -> None:
        """Delete the files of earlier runs in this folder, of any algorithm and mode, and nothing else.

        Folders of checkpoints or logs outside of it may be shared with other runs: there, only files of this
        algorithm and mode are deleted.
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
        shutil.rmtree(self.root / TRACKING_FOLDER, ignore_errors=True)
        self.config_path.unlink(missing_ok=True)

    def clear_results(self) -> None:
        """Delete the result files, which say how a run ended, and temporary files of a killed run."""
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
    """Lock an open file until it is closed or this process ends.

    Raises UsageError if another process holds the lock; the message quotes the file, which names that
    process. Only warns on a file system without locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise in_use(descriptor, path) from None
    except OSError as error:  # a file system without locks
        logger.warning("cannot lock %s (%s): only one run may use it", path.parent, error.strerror or error)


def in_use(descriptor: int, path: Path) -> UsageError:
    """Return a UsageError that names the process that holds a lock, as the open lock file at `path` says."""
    holder = os.pread(descriptor, 1000, 0).decode(errors="replace") or "another process"
    return UsageError(
        f"{path.parent} is in use by another run ({holder}): stop it or wait until it ends; "
        f"if there is no such run, delete {path}"
    )


def cannot_write(error: OSError, root: Path) -> UsageError:
    """Return a UsageError that says why a folder cannot be made or written to."""
    why = "it is a file, not a folder" if isinstance(error, FileExistsError) else error.strerror or error
    return UsageError(f"cannot write to {error.filename or root}: {why}")


def with_absolute_folders(config: Config) -> Config:
    """Return a copy of a configuration in which FOLDER_SETTINGS are absolute paths."""
    given = {key: getattr(config.logging, key) for key in FOLDER_SETTINGS}
    absolute = {key: str(Path(value).absolute()) for key, value in given.items() if value is not None}
    return config.model_copy(update={"logging": config.logging.model_copy(update=absolute)})


def automatic_name(config: Config) -> str:
    """Return a folder name with algorithm, mode, environment, seed and the current time."""
    env = re.sub(r"[^\w.-]", "-", config.env.id)
    time_now = time.strftime("%Y%m%d-%H%M%S")
    return f"{config.algorithm}_{config.mode}_{env}_seed{config.training.seed}_{time_now}"


FOLDER_SETTINGS = ("checkpoint_dir", "log_dir")
# Settings that a resumed run may change (FOLDER_SETTINGS excepted): they do not affect what it learns.
RESUMABLE = (
    *("training.total_timesteps", "training.duration_hours", "hardware.", "logging."),
    *("parallel.timeout_seconds", "parallel.check_every", "parallel.buffer"),  # and parallel.buffer_dir
    *("impala.max_actor_restarts", "impala.actor_nice", "impala.check_unwritten"),
    *("impala.actor_port", "impala.max_remote_actors", "impala.compress_unrolls"),
    *("cluster.master_", "cluster.timeout_seconds", "cluster.network_interface", "cluster.reduction"),
)


def config_of_run(root: Path) -> Config:
    """Return the configuration of the run in a folder. Raises UsageError if the folder holds no run."""
    path = root / CONFIG_FILE
    if not path.exists():
        raise UsageError(f"{root} holds no run (no {CONFIG_FILE})")
    data = read_config_file(path)
    if "algorithm" not in data or "mode" not in data:
        raise UsageError(f"{path} is empty or damaged: every run's configuration has algorithm and mode")
    return build_config(data)


def config_of_checkpoint(path: Path, checkpoint: dict[str, Any]) -> Config:
    """Return the configuration that a checkpoint was saved with, whatever config.yaml says now.

    Raises UsageError if the file's name does not match the algorithm and mode inside.
    """
    saved = f"{checkpoint['algorithm']}_{checkpoint['mode']}"
    if not path.name.startswith(f"{saved}_"):
        raise UsageError(f"{path} is a checkpoint of {saved.replace('_', ' ')}: it was renamed or replaced")
    return build_config(checkpoint["config"], str(path))


def require_same_run(before: Config, now: Config, compare_folders: bool = True) -> None:
    """Raise UsageError if `now` changes settings that a resumed run must keep; the message lists them.

    `compare_folders` is False if `before` comes from a checkpoint, whose FOLDER_SETTINGS may be relative to
    another working directory.
    """
    old, new = (flat_settings(with_absolute_folders(each)) for each in (before, now))
    folders = [f"logging.{key}" for key in FOLDER_SETTINGS] if compare_folders else []
    changed = [
        f"{key} = {old.get(key)!r} in the run, {new.get(key)!r} now"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and (key in folders or not key.startswith(RESUMABLE))
    ]
    if changed:
        raise UsageError(f"cannot resume with other settings: {'; '.join(changed)}")
