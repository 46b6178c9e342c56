"""The folder of a tuning: its settings, each algorithm's base configuration, and the paths of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlcb.config.config import Config
from rlcb.config.games import procgen_game
from rlcb.config.sourced import SourcedSettings, sources_of
from rlcb.config.yaml_file import parse_sourced, read_config_file
from rlcb.errors import UsageError
from rlcb.files import write_atomically
from rlcb.tuning.score import require_one_scale
from rlcb.tuning.settings import Tuning, base_settings, build_tuning, changed_settings, run_config

TUNING_FILE = "tuning.yaml"
BASES = "configs"
Bases = dict[str, SourcedSettings]
"""The plain settings that all runs of an algorithm start from, by algorithm."""


class TuningFolder:
    """A tuning and the paths of its files. Creating the object writes nothing."""

    def __init__(self, root: Path, tuning: Tuning, bases: Bases, exists: bool) -> None:
        """Check the configurations of the first trials. Raises UsageError if one is invalid."""
        self.root, self.tuning, self.bases, self.exists = root, tuning, bases, exists
        configs = [self.config(name, {}, env, tuning.seeds[0]) for name in bases for env in tuning.envs]
        require_one_scale(configs)

    def config(self, algorithm: str, settings: Mapping[str, Any], env: str, seed: int) -> Config:
        """Return the configuration of a run with a trial's settings. Raises UsageError if it is invalid."""
        return run_config(self.tuning, self.bases[algorithm], settings, env, seed)

    def base_config(self, algorithm: str) -> Config:
        """Return the configuration of the first run of an algorithm's first trial."""
        env, seed = self.tuning.runs_per_trial[0]
        return self.config(algorithm, {}, env, seed)

    def trial_folder(self, algorithm: str, number: int) -> Path:
        return self.root / algorithm / f"trial_{number:03d}"

    def overlay(self, algorithm: str) -> Path:
        """The file with the best settings of an algorithm."""
        return self.root / f"{algorithm}.yaml"

    def write(self) -> None:
        """Write tuning.yaml and the base configurations. Raises UsageError if the folder cannot be
        written."""
        try:
            (self.root / BASES).mkdir(parents=True, exist_ok=True)
            for algorithm, data in self.bases.items():
                if not self.exists:
                    text = yaml.safe_dump(dict(data), sort_keys=False)
                    write_atomically(self.root / BASES / f"{algorithm}.yaml", text.encode())
            settings = yaml.safe_dump(self.tuning.model_dump(mode="json"), sort_keys=False, width=110)
            head = f"# A tuning. To continue it: python tune.py --output-dir {self.root}\n"
            write_atomically(self.root / TUNING_FILE, (head + settings).encode())
        except OSError as error:
            raise UsageError(
                f"cannot write to {error.filename or self.root}: {error.strerror or error}"
            ) from None


def run_name(env: str, seed: int) -> str:
    """Return the name of a run's folder within its trial."""
    game = procgen_game(env) or "".join(c if c.isalnum() or c in "-_." else "-" for c in env)
    return f"{game}_seed{seed}"


def open_tuning(root: Path, given: Mapping[str, Any]) -> TuningFolder:
    """Open the tuning in a folder, or plan a new one there. Writes nothing.

    For an existing tuning the `given` settings must equal its own; only the number of trials may rise.
    Raises UsageError.
    """
    path = root / TUNING_FILE
    if not path.exists():
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise UsageError(f"{root} is not empty and holds no tuning; give another --output-dir")
        if "algorithms" not in given:
            raise UsageError("give --algorithms, or the --output-dir of an existing tuning")
        tuning = build_tuning(given, "tuning")
        fresh: Bases = {name: base_settings(tuning, name) for name in tuning.algorithms}
        return TuningFolder(root, tuning, fresh, exists=False)
    saved = read_tuning(path)
    merged = SourcedSettings({**saved.model_dump(), **given}, sources_of(given))
    for budget, other in (("duration", "total_timesteps"), ("total_timesteps", "duration")):
        if budget in given and other not in given:
            merged[other] = None
    now = build_tuning(merged, "tuning")
    changed = changed_settings(saved, now)
    if changed:
        raise UsageError(
            f"{root} holds a tuning with other settings: {'; '.join(changed)} (give another --output-dir)"
        )
    bases: Bases = {name: read_config_file(root / BASES / f"{name}.yaml") for name in now.algorithms}
    return TuningFolder(root, now, bases, exists=True)


def read_tuning(path: Path) -> Tuning:
    """Return the settings in a tuning.yaml. Raises UsageError."""
    try:
        data = parse_sourced(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or 'not a text file'}"
        ) from None
    if not isinstance(data, SourcedSettings):
        raise UsageError(f"{path}: expected the settings of a tuning")
    given = {key: value for key, value in data.items() if value is not None}
    return build_tuning(SourcedSettings(given, data.sources), str(path))
