"""Tracks a run with wandb or trackio, in a process of its own (training/tracker_process.py).

A tracker that fails or hangs costs the run one warning: the run goes on, and its record says what happened.
Everything is in the run's folder `tracking/`: state.json, output.log, and wandb's files.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcb.config.config import Config
from rlcb.config.games import procgen_game
from rlcb.config.logging_settings import LoggingConfig
from rlcb.errors import UsageError
from rlcb.files import read_json
from rlcb.paths import IMPORT_ROOT
from rlcb.processes.subprocesses import kill_descendants
from rlcb.training.run_folder import STUDY_FILE, TRACKING_FOLDER, RunFolder, config_of_run

logger = logging.getLogger(__name__)

STATE_FILE = "state.json"
DEFAULT_PROJECT = "rlcb"
PROJECT_VARIABLES = {"wandb": "WANDB_PROJECT", "trackio": "TRACKIO_PROJECT"}
END_SECONDS = {"interrupted": 10.0, "failed": 3.0}
"""The most that the end of tracking may take, by the status of the run: schedulers kill an interrupted run
after 30 seconds, and a supervisor the processes of a failed run after 5."""
POLL_SECONDS = 0.05


def require_tracker(tracker: str | None) -> None:
    """Raise UsageError if this tracker is not installed."""
    if tracker is not None and importlib.util.find_spec(tracker) is None:
        raise UsageError(f'--track {tracker}: {tracker} is not installed: pip install ".[track]"')


def run_names(config: Config, root: Path) -> dict[str, Any]:
    """Return project, name without id, group and tags of a run, all short.

    The runs of a study form a group with the name of its folder; other runs form groups that differ only in
    their seeds.
    """
    game = procgen_game(config.env.id) or re.sub(r"[^\w.-]", "-", config.env.id)
    kind = f"{config.algorithm}-{config.mode}-{game}"
    study = root.resolve().parent
    variable = PROJECT_VARIABLES[config.logging.track or "wandb"]
    return {
        "project": config.logging.track_project or os.environ.get(variable) or DEFAULT_PROJECT,
        "name": f"{kind}-s{config.training.seed}",
        "group": study.name if (study / STUDY_FILE).exists() else kind,
        "tags": [config.algorithm, config.mode, game],
    }


def read_state(root: Path) -> dict[str, Any]:
    """Return the tracker's state of the run or study in `root`; empty if it has not been tracked."""
    return read_json(root / TRACKING_FOLDER / STATE_FILE)


def make_job(tracker: str, names: Mapping[str, Any], root: Path, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job of the tracker process. `before` is the state of the tracked run to continue, or empty.

    A new run's name ends in four characters of its id, so that no two runs of a project share a name.
    """
    resumes = before.get("tracker") == tracker and bool(before.get("rows") or before.get("place"))
    identity = {"id": (new := uuid.uuid4().hex[:8]), "name": f"{names['name']}-{new[:4]}"}
    kept = {key: before[key] for key in ("id", "name", "project", "group")} if resumes else {}
    return {
        "tracker": tracker,
        **names,
        **identity,
        **kept,
        "resumes": resumes,
        "timesteps": before["timesteps"] if resumes else 0,
        "rows": before["rows"] if resumes else 0,
        "folder": str((root / TRACKING_FOLDER).absolute()),
    }


class Tracking:
    """A tracked run or study, as the process that it belongs to sees it. Nothing here raises."""

    def __init__(self, job: dict[str, Any], timeout_seconds: float) -> None:
        """Start the tracker process and wait until it has opened the run, for at most `timeout_seconds`."""
        self.job, self.timeout_seconds = job, timeout_seconds
        self.folder = Path(job["folder"])
        self.problem: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = self._start()
        except OSError as error:
            self._give_up(f"cannot start: {error.strerror or error}")
            return
        deadline = time.monotonic() + timeout_seconds + 2
        while self.state.get("status") in (None, "starting") and self._process.poll() is None:
            if time.monotonic() > deadline:
                self._give_up(f"its start took longer than {timeout_seconds:g} s")
                return
            time.sleep(POLL_SECONDS)
        self.check()

    def _start(self) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / STATE_FILE).unlink(missing_ok=True)
        path = os.environ.get("PYTHONPATH")
        with (self.folder / "output.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "rlcb.training.tracker_process"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the terminal must not reach it
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (IMPORT_ROOT, path)))},
            )
        self._send(process, {**self.job, "timeout_seconds": self.timeout_seconds})
        return process

    def _send(self, process: subprocess.Popen[bytes], message: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `check` notices
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()

    @property
    def state(self) -> dict[str, Any]:
        """The content of state.json, which the tracker process writes."""
        return read_json(self.folder / STATE_FILE)

    def check(self) -> None:
        """Warn, once, if the tracker process has ended."""
        if self._process is not None and self.problem is None and self._process.poll() is not None:
            state = self.state
            if state.get("status") != "finished":
                code = self._process.returncode
                self._give_up(state.get("problem") or f"its process ended with exit code {code}")

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        logger.warning("tracking with %s failed: %s (see %s)", self.job["tracker"], problem, self.folder)
        self.close()

    def finish(self, facts: Mapping[str, Any], status: str, **more: Any) -> None:
        """Log the facts of the ended run, and wait until everything is stored or its time is up.

        `status` is the run's. `more` may hold `timesteps`, and `pictures`: files by name.
        """
        self.check()
        if self.problem is not None or self._process is None:
            return
        patience = self.timeout_seconds + 1  # the process notices first, and says more
        seconds = min(patience, END_SECONDS.get(status, patience))
        self._send(self._process, {"facts": facts, "exit_code": int(status != "completed"), **more})
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._give_up(f"its end took longer than {seconds:g} s")
        self.check()
        self.close()

    def close(self) -> None:
        """End the tracker process and what it has started, if they still run."""
        if self._process is None:
            return
        if self._process.poll() is None:
            kill_descendants(self._process.pid)
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def text(self) -> str:
        """Return where the run is tracked, in words."""
        if self.problem is not None:
            return f"{self.job['tracker']} failed: {self.problem}"
        return f"{self.job['tracker']}, {self.job['name']}: {self.state.get('place')}"

    def record(self) -> dict[str, Any]:
        """Return the facts about the tracking for benchmark_metrics.json."""
        state = self.state
        return {
            **{key: self.job[key] for key in ("tracker", "project", "name", "group", "id")},
            "place": state.get("place"),
            "rows": state.get("rows", 0),
            "status": "failed" if self.problem is not None else state.get("status"),
            "problem": self.problem,
        }


@contextlib.contextmanager
def track_run(config: Config, folder: RunFolder, resume: bool) -> Iterator[Tracking | None]:
    """Context manager that tracks a run if its configuration asks for it; at the end no process is left.

    `resume` continues the tracked run of before.
    """
    if config.logging.track is None:
        yield None
        return
    before = read_state(folder.root) if resume else {}
    job = make_job(config.logging.track, run_names(config, folder.root), folder.root, before)
    job |= {
        "kind": "train",
        "config": config.model_dump(mode="json"),
        "rows_path": str(folder.rows.absolute()),
    }
    with contextlib.closing(Tracking(job, config.logging.track_timeout_seconds)) as tracking:
        yield tracking


def track_evaluation(root: Path, result: Mapping[str, Any]) -> None:
    """Log an evaluation, the content of its file, to the tracked run of the checkpoint, if there is one.

    `root` is the run's folder. Evaluations of the random policy or of another environment are not logged.
    """
    before = read_state(root)
    if not before.get("place") or result["algorithm"] == "random" or result["env"] != result["trained_env"]:
        return
    config = config_of_run(root)
    job = make_job(before["tracker"], run_names(config, root), root, before)
    job |= {"kind": "train", "config": config.model_dump(mode="json"), "rows_path": None}
    tracking = Tracking(job, config.logging.track_timeout_seconds)
    tracking.finish(evaluation_facts(result), "completed", timesteps=result["timesteps"])


def evaluation_facts(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of an evaluation, such as `evaluation/test/mean_reward`.

    Those of another checkpoint than the final one start with its kind, as in `evaluation_best/`.
    """
    kind = Path(result["checkpoint"]).stem.split("_", 2)[-1]
    start = "evaluation" if kind == "final" else f"evaluation_{kind}"
    facts: dict[str, Any] = {}
    for split, summary in result["splits"].items():
        low, high = summary["ci95_mean_reward"] or (None, None)
        numbers = {"mean_reward": summary["mean_reward"], "std_reward": summary["std_reward"]}
        numbers |= {"ci95_low": low, "ci95_high": high, "episodes": summary["episodes"]}
        facts |= {f"{start}/{split}/{key}": value for key, value in numbers.items() if value is not None}
    return facts


def track_comparison(root: Path, tracker: str, picture: Path, facts: Mapping[str, Any]) -> None:
    """Log the comparison picture of the study in `root` as a tracked run of the study's group."""
    names = {
        "project": os.environ.get(PROJECT_VARIABLES[tracker]) or DEFAULT_PROJECT,
        "name": f"{root.resolve().name}-comparison",
        "group": root.resolve().name,
        "tags": ["comparison"],
    }
    job = make_job(tracker, names, root, read_state(root))
    job |= {"kind": "comparison", "config": {}, "rows_path": None}
    tracking = Tracking(job, LoggingConfig().track_timeout_seconds)
    tracking.finish(facts, "completed", pictures={"comparison": str(picture.absolute())})


def final_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the final metrics of a run as its tracker shows them, from benchmark_metrics.json."""
    performance, usage = record["performance"], record["resource_usage"]
    facts = {
        "final/status": record["status"],
        "final/timesteps": record["total_timesteps"],
        "final/updates": record["total_updates"],
        "final/episodes": record["total_episodes"],
        "final/hours": record["duration_hours"],
        "final/fps": record["average_fps"],
        **{f"final/{key}": value for key, value in performance.items()},
        "final/peak_memory_gb": usage["peak_memory_gb"],
    }
    return {key: value for key, value in facts.items() if value is not None}
