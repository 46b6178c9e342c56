"""The experiment trackers: Weights & Biases (wandb) and trackio, behind one interface.

Only the tracker process (training/tracker_process.py) uses them. A job is a dictionary with tracker, project,
name, group, tags, id, config, kind and folder; `resumes` tells whether a run with this id and name exists.
"""

from __future__ import annotations

import importlib
import netrc
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

WANDB_HOST = "api.wandb.ai"
TROUBLE = ("fail", "could not", "skipped", "buffered")
"""Words of trackio's warnings about data that it could not store."""


class Tracker(Protocol):
    """An open run of a tracker. The x axis is the number of timesteps."""

    place: str
    """Where the data goes, in a few words."""

    def log_row(self, row: Mapping[str, Any]) -> None:
        """Log a row of metrics.jsonl without its missing values."""

    def log_facts(self, facts: Mapping[str, Any], timesteps: int) -> None:
        """Log results of the whole run, such as its final metrics."""

    def log_picture(self, name: str, path: Path) -> None:
        """Log a picture file."""

    def close(self, exit_code: int) -> None:
        """Store everything and end the run; `exit_code` is 0 if it completed."""


def open_tracker(job: Mapping[str, Any]) -> Tracker:
    """Create or continue the tracked run that a job describes. Raises whatever the tracker raises."""
    return WandbTracker(job) if job["tracker"] == "wandb" else TrackioTracker(job)


class WandbTracker:
    """A run of Weights & Biases, offline unless there is an API key."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        mode = os.environ.get("WANDB_MODE") or ("online" if has_wandb_key() else "offline")
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would wait for the network
        wandb = importlib.import_module("wandb")
        self._image, self._teardown = wandb.Image, wandb.teardown
        self.run = wandb.init(
            project=job["project"],
            name=job["name"],
            group=job["group"],
            tags=job["tags"],
            id=job["id"],
            config=job["config"],
            job_type=job["kind"],
            dir=job["folder"],
            mode=mode,
            resume="allow" if job["resumes"] and mode == "online" else None,
            settings=wandb.Settings(
                console="off",  # the run's own output stays where it is
                disable_code=True,
                disable_git=True,
                quiet=True,
                x_disable_stats=True,  # a thread that measures the machine every few seconds
            ),
        )
        files = Path(self.run.dir).parent
        self.place = f"offline in {files}" if mode == "offline" else self.run.url or mode

    def log_row(self, row: Mapping[str, Any]) -> None:
        self.run.log(dict(row), step=row["timesteps"])

    def log_facts(self, facts: Mapping[str, Any], timesteps: int) -> None:
        self.run.summary.update(dict(facts))

    def log_picture(self, name: str, path: Path) -> None:
        self.run.log({name: self._image(str(path))})

    def close(self, exit_code: int) -> None:
        self.run.finish(exit_code=exit_code)
        self._teardown(exit_code)  # waits for the end of wandb's own process


def has_wandb_key() -> bool:
    """Return whether wandb can log in without asking: WANDB_API_KEY, or an entry of its host in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", WANDB_HOST).partition("://")[2] or WANDB_HOST
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host.rstrip("/")) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class TrackioTracker:
    """A run of trackio in its local database, or on the server or Space that its variables name."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        trackio = importlib.import_module("trackio")
        self._image = trackio.Image
        self.problems: list[str] = []
        # trackio never raises: it warns, and drops what it could not store.
        warnings.showwarning = lambda message, *_: self._note(str(message))
        warnings.simplefilter("always")
        self.run = trackio.init(
            project=job["project"],
            name=job["name"],
            group=job["group"],
            config={**job["config"], "tags": job["tags"]},
            resume="must" if job["resumes"] else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        utils = importlib.import_module("trackio.utils")
        self.place = f"project {job['project']} in {utils.TRACKIO_DIR}"
        for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
            self.place = os.environ.get(variable) or self.place

    def _note(self, message: str) -> None:
        print(message, flush=True)
        if any(word in message.lower() for word in TROUBLE):
            self.problems.append(message)

    def _require_sound(self) -> None:
        if self.problems:
            raise RuntimeError(self.problems[0])

    def log_row(self, row: Mapping[str, Any]) -> None:
        self._require_sound()
        self.run.log(dict(row), step=row["timesteps"])

    def log_facts(self, facts: Mapping[str, Any], timesteps: int) -> None:
        self.run.log(dict(facts), step=timesteps)

    def log_picture(self, name: str, path: Path) -> None:
        self.run.log({name: self._image(str(path))})

    def close(self, exit_code: int) -> None:
        self.run.finish()
        self._require_sound()
