"""The configuration of the runs of a study: file, single settings, and what every run must allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcb.config.algorithms import ALGORITHMS, ONE_MACHINE
from rlcb.config.config import Config
from rlcb.config.games import check_environment
from rlcb.config.yaml_file import build_config, read_config_file, set_value
from rlcb.errors import UsageError
from rlcb.paths import default_config_path
from rlcb.study.study import PlannedRun, Study

# What the matrix or the folder of a run decides.
RESERVED = {
    "algorithm": "--algorithms",
    "mode": "--modes",
    "env.id": "--envs",
    "training.seed": "--seeds",
    "training.duration_hours": "--duration",
    "training.total_timesteps": "--total-timesteps",
    "logging.checkpoint_dir": "--output-dir",
    "logging.log_dir": "--output-dir",
}


def fits(scope: str, algorithm: str, mode: str) -> bool:
    """Whether the runs of an algorithm and mode are meant by a scope; the empty one means all."""
    return scope in ("", algorithm, mode, f"{algorithm}_{mode}")


def check_scopes(study: Study) -> None:
    """Raise UsageError for a setting or a file that no run of the study would use."""
    scopes = [("--config", scope, f"{scope}={path}") for scope, path in study.config.items()]
    for key in study.set:
        scope, name = split_key(key)
        if name in RESERVED:
            raise UsageError(f"--set {key}: {name} belongs to the study; use {RESERVED[name]}")
        scopes.append(("--set", scope, key))
    for flag, scope, text in scopes:
        if flag == "--config" and (not scope or scope in ONE_MACHINE):
            raise UsageError(f"--config {text}: expected ALGORITHM=FILE or ALGORITHM_MODE=FILE")
        if not any(fits(scope, *pair) for pair in study.configurations):
            raise UsageError(
                f"{flag} {text}: no run of this study is {scope!r}; possible are an algorithm "
                f"({', '.join(ALGORITHMS)}), a mode or both, as in ppo_parallel, of those that the study has"
            )


def split_key(key: str) -> tuple[str, str]:
    """Scope and name of a setting: `ppo:training.n_epochs` is ("ppo", "training.n_epochs")."""
    scope, separator, name = key.partition(":")
    return (scope.lower(), name) if separator else ("", key)


def settings_of(study: Study, algorithm: str, mode: str) -> dict[str, Any]:
    """The settings, in plain sections, that all runs of an algorithm and mode have: the file's with the
    study's own over them, the more special ones last. Raises UsageError."""
    named = study.config.get(f"{algorithm}_{mode}") or study.config.get(algorithm)
    path = Path(named) if named else default_config_path(algorithm, mode)
    data = read_config_file(path)
    for key, ours in (("algorithm", algorithm), ("mode", mode)):
        if data.setdefault(key, ours) != ours:
            raise UsageError(f"{path}: {key} = {data[key]!r}, but it is to configure {algorithm} {mode}")
    for key in ("logging.checkpoint_dir", "logging.log_dir"):
        section, name = key.split(".")
        if (data.get(section) or {}).get(name) is not None:
            raise UsageError(f"{path}: {key} would be shared by all runs; leave it out, each has its folder")
    if study.num_envs is not None:
        set_value(data, "env.num_envs", study.num_envs, "--num-envs")
    if mode == "parallel" and (study.num_workers is not None or named is None):
        # Without a number or a file that says one: as many as the machine has cores for, for all alike.
        key = "impala.num_actors" if algorithm == "impala" else "parallel.num_workers"
        set_value(data, key, study.num_workers, "--num-workers")
    for key in sorted(study.set, key=lambda key: _speciality(split_key(key)[0])):
        scope, name = split_key(key)
        if fits(scope, algorithm, mode):
            set_value(data, name, study.set[key], f"--set {key}")
    return data


def _speciality(scope: str) -> int:
    return 0 if not scope else 2 if "_" in scope else 1


def config_of_cell(study: Study, cell: PlannedRun, settings: dict[str, Any]) -> Config:
    """The configuration with which a run will begin. Raises UsageError if it is none."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in settings.items()}
    source = f"{cell.algorithm} {cell.mode}"
    values = {
        "env.id": cell.env,
        "training.seed": cell.seed,
        "training.duration_hours": study.duration,
        "training.total_timesteps": study.total_timesteps,
    }
    for key, value in values.items():
        set_value(data, key, value, source)
    return build_config(data, source)


def check_study(study: Study, settings: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Config]:
    """The configuration of every run, by its name. Raises UsageError if one of them cannot even begin."""
    check_scopes(study)
    for env in study.envs:
        check_environment(env, "--envs")
    return {
        cell.name: config_of_cell(study, cell, settings[cell.algorithm, cell.mode]) for cell in study.cells
    }
