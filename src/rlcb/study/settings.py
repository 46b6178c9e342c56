"""The configurations of a study's runs: configuration file, overriding settings, and their checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcb.config.algorithms import ALGORITHMS, MODES
from rlcb.config.config import Config
from rlcb.config.games import check_environment
from rlcb.config.yaml_file import (
    DECIDED_BY_FLAGS,
    RUN_NAMES,
    build_config,
    read_config_files,
    set_value,
    split_key,
)
from rlcb.errors import UsageError
from rlcb.paths import default_config_path
from rlcb.study.study import PlannedRun, Study
from rlcb.suggestion import did_you_mean

RESERVED = {**DECIDED_BY_FLAGS, "mode": "--modes", "cluster.num_nodes": "--nodes"}


def scope_matches(scope: str, algorithm: str, mode: str) -> bool:
    """Return whether a scope includes the runs of this algorithm and mode; the empty scope includes all."""
    return scope in ("", algorithm, mode, f"{algorithm}_{mode}")


def check_scopes(study: Study) -> None:
    """Raise UsageError for a setting or a file that no run of the study would use."""
    scopes = [("--config", scope, f"{scope}={path}") for scope, path in study.config.items()]
    for key in study.set:
        scope, name = split_key(key)
        if name in RESERVED:
            raise UsageError(f"--set {key}: the study sets {name} for each run; use {RESERVED[name]}")
        scopes.append(("--set", scope, key))
    for flag, scope, text in scopes:
        if flag == "--config" and (not scope or scope in MODES):
            raise UsageError(f"--config {text}: expected ALGORITHM=FILE or ALGORITHM_MODE=FILE")
        if not any(scope_matches(scope, *pair) for pair in study.configurations):
            raise UsageError(
                f"{flag} {text}: no run of this study matches {scope!r}; expected an algorithm "
                f"({', '.join(ALGORITHMS)}), a mode, or both (as in ppo_parallel) that the study contains"
                f"{did_you_mean(scope, RUN_NAMES)}"
            )


def configuration_settings(study: Study, algorithm: str, mode: str) -> dict[str, Any]:
    """Return the settings that all runs of an algorithm and mode share, as nested dictionaries.

    The settings of the study override the configuration file; a setting for one algorithm and mode overrides
    a setting for one of them, which overrides a setting for all runs. An overlay goes over the default file
    (rlcb.config.yaml_file.read_config_files). Raises UsageError.
    """
    named = study.config.get(f"{algorithm}_{mode}") or study.config.get(algorithm)
    path = Path(named) if named else default_config_path(algorithm, mode)
    data = read_config_files([path], algorithm, mode)
    for key, expected in (("algorithm", algorithm), ("mode", mode)):
        if data.setdefault(key, expected) != expected:
            raise UsageError(f"{path}: {key} = {data[key]!r}, but the file is given for {algorithm} {mode}")
    for key in ("logging.checkpoint_dir", "logging.log_dir"):
        section, name = key.split(".")
        if (data.get(section) or {}).get(name) is not None:
            raise UsageError(f"{path}: all runs would share {key}; leave it out, each run has its own folder")
    if study.num_envs is not None:
        set_value(data, "env.num_envs", study.num_envs, "--num-envs")
    if mode != "sequential" and (study.num_workers is not None or named is None):
        # Without --num-workers and without a given file this sets None: the number follows the cores.
        section = "parallel" if mode == "parallel" else "cluster"
        key = "impala.num_actors" if algorithm == "impala" else f"{section}.num_workers"
        set_value(data, key, study.num_workers, "--num-workers")
    if study.track is not None:
        set_value(data, "logging.track", study.track, "--track")
    for key in sorted(study.set, key=lambda key: _scope_rank(split_key(key)[0])):
        scope, name = split_key(key)
        if scope_matches(scope, algorithm, mode):
            set_value(data, name, study.set[key], f"--set {key}")
    return data


def _scope_rank(scope: str) -> int:
    """Return 0 for all runs, 1 for an algorithm or a mode, 2 for both: higher ranks override lower ones."""
    return 0 if not scope else 2 if "_" in scope else 1


def settings_of_nodes(study: Study, run: PlannedRun, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, by dotted key, that its number of nodes decides; none for one machine.

    `settings` are those that all runs of its algorithm and mode share. Raises UsageError.
    """
    if run.nodes is None:
        return {}
    values = {"cluster.num_nodes": run.nodes}
    if study.scaling == "weak":
        config = build_config(settings, f"{run.algorithm} {run.mode}")
        values["env.num_envs"] = config.env.num_envs * run.nodes
        if config.training.batch_size is not None:
            values["training.batch_size"] = config.training.batch_size * run.nodes
    return values


def planned_run_config(study: Study, run: PlannedRun, settings: dict[str, Any]) -> Config:
    """Return the validated configuration of a run. Raises UsageError if it is invalid."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in settings.items()}
    source = f"{run.algorithm} {run.where}"
    values = settings_of_nodes(study, run, settings) | {
        "env.id": run.env,
        "training.seed": run.seed,
        "training.duration_hours": study.duration,
        "training.total_timesteps": study.total_timesteps,
    }
    for key, value in values.items():
        set_value(data, key, value, source)
    return build_config(data, source)


def check_study(study: Study, settings: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Config]:
    """Return the configuration of each run by name. Raises UsageError if a run could not start."""
    check_scopes(study)
    for env in study.envs:
        check_environment(env, "--envs")
    return {run.name: planned_run_config(study, run, settings[run.algorithm, run.mode]) for run in study.runs}
