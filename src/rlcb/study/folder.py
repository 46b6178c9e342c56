"""The folder of a study: the settings and configurations that are fixed when the study starts."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from rlcb.comparison.lost import LostRun
from rlcb.config.sourced import SourcedSettings, sources_of
from rlcb.config.yaml_file import parse_sourced, read_config_file
from rlcb.errors import RunError, UsageError
from rlcb.files import write_atomically
from rlcb.processes.subprocesses import failure_reason
from rlcb.study.settings import check_study, configuration_settings, settings_of_nodes
from rlcb.study.state import TRAINING_LOG, RunState, read_state
from rlcb.study.study import PlannedRun, Study, build_study, require_known_keys, training_flags
from rlcb.training.run_folder import STUDY_CONFIGS, STUDY_FILE, STUDY_LOG_FILE

# Settings that may change when a study is resumed, because they do not affect the training of its runs.
CHANGEABLE = ("cooldown", "evaluate_episodes", "until_decided", "max_hours")
MATRIX = ("algorithms", "modes", "nodes", "envs", "seeds")
Settings = dict[tuple[str, str], SourcedSettings]


class StudyFolder:
    """A study and the paths of its files. Creating the object writes nothing; `exists` tells whether
    study.yaml has been written."""

    def __init__(
        self,
        root: Path,
        study: Study,
        settings: Settings,
        exists: bool,
        sources: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Check every run. `sources` tells where the keys of the study come from. Raises UsageError."""
        self.root, self.study, self.settings, self.exists = root, study, settings, exists
        self.configs = check_study(study, settings, sources)
        """The configuration of each run, by the run's name."""

    def run_folder(self, run: PlannedRun) -> Path:
        return self.root / run.name

    def state(self, run: PlannedRun) -> RunState:
        return read_state(self.study, run, self.run_folder(run))

    def states(self) -> dict[str, RunState]:
        """Read the state of each run, by the run's name."""
        return {run.name: self.state(run) for run in self.study.runs}

    def training_flags(self, run: PlannedRun, state: RunState) -> list[str]:
        """Return the flags that start the training of a run, or resume it."""
        if state.resumable:
            return ["--resume", "--output-dir", str(self.run_folder(run))]
        config = config_path(self.root, run.algorithm, run.mode)
        settings = settings_of_nodes(self.study, run, self.settings[run.algorithm, run.mode])
        return training_flags(self.study, run, config, self.run_folder(run), settings)

    def write(self) -> None:
        """Write study.yaml and the configurations. Raises UsageError if the folder cannot be written."""
        try:
            (self.root / STUDY_CONFIGS).mkdir(parents=True, exist_ok=True)
            for pair, data in self.settings.items():
                path = config_path(self.root, *pair)
                if not path.exists():
                    write_atomically(path, yaml.safe_dump(dict(data), sort_keys=False).encode())
            write_atomically(self.root / STUDY_FILE, self._text().encode())
        except OSError as error:
            raise UsageError(
                f"cannot write to {error.filename or self.root}: {error.strerror or error}"
            ) from None
        self.exists = True

    def _text(self) -> str:
        settings = yaml.safe_dump(self.study.model_dump(mode="json"), sort_keys=False, width=110)
        runs = "".join(f"#   {run.number:>3}  {run.name}\n" for run in self.study.runs)
        return (
            f"# A study. To resume it: python run_benchmark.py --output-dir {self.root}\n"
            f"# The configurations of its runs are in {STUDY_CONFIGS}/. "
            "The results of a run are in the run's folder.\n"
            f"{settings}# runs, in order:\n{runs}"
        )

    def log(self, event: str, **facts: Any) -> None:
        """Append an event to study_log.jsonl. Comparisons read the log (machine load, restarts); the study
        itself does not. Raises RunError."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "event": event,
            "host": socket.gethostname(),
            **facts,
        }
        try:
            with (self.root / STUDY_LOG_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunError(
                f"cannot write to {self.root / STUDY_LOG_FILE}: {error.strerror or error}"
            ) from error


def config_path(root: Path, algorithm: str, mode: str) -> Path:
    return root / STUDY_CONFIGS / f"{algorithm}_{mode}.yaml"


def read_study_file(path: Path) -> SourcedSettings:
    """Return the settings in a study file. Its relative paths start at its own folder. Raises UsageError."""
    try:
        data = parse_sourced(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise UsageError(f"cannot read study {path}: {reason}") from None
    if not isinstance(data, SourcedSettings):
        raise UsageError(f"{path}: expected settings of a study (algorithms, modes, envs, seeds, ...)")
    given = SourcedSettings({str(k): value for k, value in data.items() if value is not None}, data.sources)
    if isinstance(given.get("config"), dict):
        given["config"] = {
            scope: str((path.parent / name).resolve()) for scope, name in given["config"].items()
        }
    return given


def missing_runs(root: Path, found: Collection[Path]) -> list[LostRun]:
    """Return each run that the study in `root` plans and that is not in `found`.

    `found` holds the resolved folders of the runs that exist.
    """
    path = root / STUDY_FILE
    try:
        study = build_study(read_study_file(path), str(path))
    except UsageError as error:
        return [LostRun(path, f"cannot list the study's missing runs: {error}")]
    missing = []
    for run in study.runs:
        folder = root / run.name
        if folder.resolve() not in found:
            log = folder / TRAINING_LOG
            failure = f"the run ended before it wrote its configuration: {failure_reason(log)}"
            reason = failure if log.exists() else "the run has not started"
            facts = (run.algorithm, run.mode, run.env, run.seed)
            missing.append(LostRun(folder, reason, *facts, nodes=run.nodes))
    return missing


def open_study(root: Path, given: Mapping[str, Any], extend: bool = False) -> StudyFolder:
    """Open the study in a folder, or plan a new one there. Writes nothing.

    `given` holds the settings from a study file and the flags. For an existing study they must equal its
    settings, except CHANGEABLE ones; with `extend` they may also add runs to its matrix. Raises UsageError.
    """
    path = root / STUDY_FILE
    if not path.exists():
        _refuse_if_occupied(root)
        require_known_keys(given, "study")
        if "algorithms" not in given:
            raise UsageError("give --algorithms, or --study FILE, or the --output-dir of an existing study")
        study, sources = build_study(given, "study"), sources_of(given)
        return StudyFolder(root, study, _settings(root, study, sources), exists=False, sources=sources)
    saved = read_study_file(path)
    before, sources = build_study(saved, str(path)), {**saved.sources, **sources_of(given)}
    merged = SourcedSettings({**before.model_dump(), **given}, sources)
    if before.until_decided and before.seeds[: len(merged["seeds"])] == merged["seeds"]:
        merged["seeds"] = before.seeds  # rounds have added seeds to those given
    for budget, other in (("duration", "total_timesteps"), ("total_timesteps", "duration")):
        if budget in given and other not in given:
            merged[other] = None
    now = build_study(merged, "study")
    _require_same_study(root, before, now, extend)
    settings = _settings(root, now, sources)
    if "config" in given:
        _require_same_configs(root, now, settings)
    return StudyFolder(root, now, settings, exists=True, sources=sources)


def _refuse_if_occupied(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise UsageError(f"--output-dir {root}: it is a file, not a folder")
    if root.is_dir() and {entry.name for entry in root.iterdir()} - {STUDY_CONFIGS}:
        raise UsageError(f"{root} is not empty and holds no study; give another --output-dir")


def _settings(root: Path, study: Study, sources: Mapping[str, str]) -> Settings:
    """Return the settings of each (algorithm, mode): from the study's folder if it has them, or else from the
    configuration files."""
    return {
        pair: read_config_file(path)
        if (path := config_path(root, *pair)).exists() and (root / STUDY_FILE).exists()
        else configuration_settings(study, *pair, sources)
        for pair in study.configurations
    }


def _require_same_study(root: Path, before: Study, now: Study, extend: bool) -> None:
    changed: list[str] = []
    grown: list[str] = []
    for key in Study.model_fields:
        old, new = getattr(before, key), getattr(now, key)
        if old == new or key in CHANGEABLE:
            continue
        added = key in MATRIX and new is not None and all(value in new for value in old or ())
        (grown if added else changed).append(f"{key} = {_short(old)} there, {_short(new)} now")
    if changed or (grown and not extend):
        hint = "--extend adds runs to it" if not changed else "give another --output-dir"
        raise UsageError(
            f"{root} holds a study with other settings: {'; '.join([*changed, *grown])} ({hint})"
        )


def _short(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _require_same_configs(root: Path, study: Study, saved: Settings) -> None:
    """Raise UsageError if a configuration file that is given again has changed since the study started."""
    for pair, before in saved.items():
        old, new = _flat(before), _flat(configuration_settings(study, *pair))
        changed = [
            f"{key} = {old.get(key)!r} there, {new.get(key)!r} now"
            for key in sorted({*old, *new})
            if old.get(key) != new.get(key)
        ]
        if changed:
            raise UsageError(
                f"{root} holds a study with another configuration of {' '.join(pair)}: {'; '.join(changed)} "
                "(give another --output-dir)"
            )


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + str(key): value}
    return flat
