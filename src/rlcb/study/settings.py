"""The configurations of a study's runs: configuration file, overriding settings, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlcb.config.algorithms import ALGORITHMS, MODES
from rlcb.config.config import Config
from rlcb.config.games import check_environment
from rlcb.config.sourced import SourcedSettings, flag_of, place_of
from rlcb.config.yaml_file import (
    DECIDED_BY_FLAGS,
    RUN_NAMES,
    build_config,
    read_config_files,
    require_run,
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


def check_scopes(study: Study, sources: Mapping[str, str]) -> None:
    """Raise UsageError for a setting or a file that no run of the study would use."""
    scopes = []
    for scope, path in study.config.items():
        place = f"{place_of(sources, f'config.{scope}')}={path}"
        if not scope or scope in MODES:
            raise UsageError(f"{place}: expected ALGORITHM=FILE or ALGORITHM_MODE=FILE")
        scopes.append((place, scope))
    for key in study.set:
        scope, name = split_key(key)
        place = place_of(sources, f"set.{key}")
        if name in RESERVED:
            raise UsageError(f"{place}: the study sets {name} for each run; use {RESERVED[name]}")
        scopes.append((place, scope))
    for place, scope in scopes:
        if not any(scope_matches(scope, *pair) for pair in study.configurations):
            raise UsageError(
                f"{place}: no run of this study matches {scope!r}; expected an algorithm "
                f"({', '.join(ALGORITHMS)}), a mode, or both (as in ppo_parallel) that the study contains"
                f"{did_you_mean(scope, RUN_NAMES)}"
            )


def configuration_settings(
    study: Study, algorithm: str, mode: str, sources: Mapping[str, str] = MappingProxyType({})
) -> SourcedSettings:
    """Return the settings that all runs of an algorithm and mode share, as nested dictionaries.

    The settings of the study override the configuration file; a setting for one algorithm and mode overrides
    a setting for one of them, which overrides a setting for all runs. An overlay goes over the default file
    (rlcb.config.yaml_file.read_config_files). `sources` tells where the keys of the study come from; the
    source of others is their flag. Raises UsageError.
    """
    named = study.config.get(f"{algorithm}_{mode}") or study.config.get(algorithm)
    path = Path(named) if named else default_config_path(algorithm, mode)
    data = read_config_files([path], algorithm, mode)
    require_run(data, algorithm, mode, "the file is given for")
    for key in ("logging.checkpoint_dir", "logging.log_dir"):
        section, name = key.split(".")
        if (data.get(section) or {}).get(name) is not None:
            raise UsageError(
                f"{data.source(key)}: all runs would share {key}; leave it out, each run has its own folder"
            )
    if study.num_envs is not None:
        set_value(data, "env.num_envs", study.num_envs, sources.get("num_envs", "--num-envs"))
    if mode != "sequential" and study.num_workers is not None:
        section = "parallel" if mode == "parallel" else "cluster"
        key = "impala.num_actors" if algorithm == "impala" else f"{section}.num_workers"
        set_value(data, key, study.num_workers, sources.get("num_workers", "--num-workers"))
    if study.track is not None:
        set_value(data, "logging.track", study.track, sources.get("track", "--track"))
    for key in sorted(study.set, key=lambda key: _scope_rank(split_key(key)[0])):
        scope, name = split_key(key)
        if scope_matches(scope, algorithm, mode):
            set_value(data, name, study.set[key], sources.get(f"set.{key}", f"--set {key}"))
    return data


def _scope_rank(scope: str) -> int:
    """Return 0 for all runs, 1 for an algorithm or a mode, 2 for both: higher ranks override lower ones."""
    return 0 if not scope else 2 if "_" in scope else 1


def settings_of_nodes(study: Study, run: PlannedRun, settings: SourcedSettings) -> dict[str, Any]:
    """Return the settings of a run, by dotted key, that its number of nodes decides; none for one machine.

    `settings` are those that all runs of its algorithm and mode share. Raises UsageError.
    """
    if run.nodes is None:
        return {}
    values = {"cluster.num_nodes": run.nodes}
    if study.scaling == "weak":
        config = build_config(settings)
        values["env.num_envs"] = config.env.num_envs * run.nodes
        if config.training.batch_size is not None:
            values["training.batch_size"] = config.training.batch_size * run.nodes
    return values


def planned_run_config(
    study: Study, run: PlannedRun, settings: SourcedSettings, sources: Mapping[str, str]
) -> Config:
    """Return the validated configuration of a run. Raises UsageError, which names it, if it is invalid."""
    data = settings.copy()
    values = {
        "env.id": (run.env, "envs"),
        "training.seed": (run.seed, "seeds"),
        "training.duration_hours": (study.duration, "duration"),
        "training.total_timesteps": (study.total_timesteps, "total_timesteps"),
    }
    try:
        for key, value in settings_of_nodes(study, run, settings).items():
            set_value(data, key, value, f"the number of nodes, {run.nodes}")
        for key, (value, given) in values.items():
            set_value(data, key, value, sources.get(given) or flag_of(given))
        return build_config(data)
    except UsageError as error:
        raise UsageError(f"{run.algorithm} {run.where}: {error}") from None


def check_study(
    study: Study,
    settings: dict[tuple[str, str], SourcedSettings],
    sources: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Config]:
    """Return the configuration of each run by name. Raises UsageError if a run could not start."""
    check_scopes(study, sources)
    for env in study.envs:
        check_environment(env, place_of(sources, "envs"))
    return {
        run.name: planned_run_config(study, run, settings[run.algorithm, run.mode], sources)
        for run in study.runs
    }
