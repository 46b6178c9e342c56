"""What the flags of profile_cpu.py mean: which algorithms, modes and environments, and files to write."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from src.config import Config
from src.config_file import build_config, read_config_file, set_value
from src.errors import UsageError
from src.procgen_games import GAMES, canonical_id, procgen_game
from src.profiling import env_key, resolved_model
from src.profiling_write import pair_of_file, refuse_if_exists
from src.project import default_config_path
from src.settings import EnvConfig
from src.study import ALGORITHMS, MODES, NO_SUCH_RUN
from src.study_settings import check_environment, parse_settings

Pair = tuple[str, str]
"""An algorithm and a mode."""


def selected_pairs(arguments: argparse.Namespace) -> list[Pair]:
    """The algorithms and modes that are meant. Raises UsageError if there are none."""
    algorithms, modes = arguments.algorithms or ALGORITHMS, arguments.modes or MODES
    pairs = [(a, m) for a in algorithms for m in modes if (a, m) not in NO_SUCH_RUN]
    if not pairs:
        raise UsageError("--algorithms a3c --modes sequential: one sequential A3C worker is A2C")
    return pairs


def configuration(pair: Pair, arguments: argparse.Namespace) -> Config:
    """The configuration of an algorithm and mode, with what the flags change."""
    path = default_config_path(*pair)
    data = read_config_file(path)
    data.setdefault("algorithm", pair[0])
    data.setdefault("mode", pair[1])
    if arguments.network is not None:
        set_value(data, "model.architecture", arguments.network, "--network")
    if arguments.env and arguments.env[0] != "all":
        set_value(data, "env.id", arguments.env[0], "--env")
    for key, value in parse_settings(arguments.set).items():
        set_value(data, key, value, f"--set {key}")
    return build_config(data, str(path))


def check_environments(arguments: argparse.Namespace) -> None:
    """Raises UsageError for an environment that there is not."""
    for name in arguments.env or ():
        if name != "all":
            check_environment(name)


def configurations(pairs: Sequence[Pair], arguments: argparse.Namespace) -> dict[Pair, Config]:
    """The configuration of every pair. Raises UsageError if they are for different networks or
    environments."""
    check_environments(arguments)
    configs = {pair: configuration(pair, arguments) for pair in pairs}
    first = configs[pairs[0]]
    for pair, config in configs.items():
        if (env_key(config.env), resolved(config)) != (env_key(first.env), resolved(first)):
            raise UsageError(
                f"{default_config_path(*pair)} has another network or environment than "
                f"{default_config_path(*pairs[0])}: give --network and --env, or name --algorithms"
            )
    return configs


def resolved(config: Config) -> Any:
    return resolved_model(config.model, procgen_game(config.env.id) is not None)


def environments(config: Config, names: Sequence[str] | None) -> list[EnvConfig]:
    """The environments to step: config's first, then the others that `names` has."""
    wanted = [each for name in names or () for each in (GAMES if name == "all" else (name,))]
    ids = dict.fromkeys([config.env.id, *map(canonical_id, wanted)])
    base = config.env.model_dump()
    return [EnvConfig.model_validate({**base, "id": each}) for each in ids]


def files_to_write(arguments: argparse.Namespace, pairs: Sequence[Pair]) -> dict[Path, Pair]:
    """The configuration files that are asked for, and of which pair each is. Raises UsageError."""
    if arguments.overwrite and not arguments.write:
        raise UsageError("--overwrite: there is nothing to overwrite without --write")
    files = {}
    for path in arguments.write:
        refuse_if_exists(path, arguments.overwrite)
        pair = pair_of_file(path) or (pairs[0] if len(pairs) == 1 else None)
        if pair is None:
            raise UsageError(
                f"--write {path}: the name must end in _<algorithm>_<mode>.yaml, as "
                "local_ppo_parallel.yaml, or --algorithms and --modes must name one of each"
            )
        if pair not in pairs:
            raise UsageError(f"--write {path}: --algorithms and --modes leave out {' '.join(pair)}")
        files[path] = pair
    return files


def traced_configuration(arguments: argparse.Namespace) -> Config:
    """What --trace runs. Raises UsageError, also for flags that would make no difference to it."""
    pair = traced_pair(arguments.trace)
    if arguments.write or arguments.overwrite or arguments.algorithms or arguments.modes:
        raise UsageError("--trace names the algorithm and mode by itself, and --write writes nothing then")
    if arguments.env and (len(arguments.env) > 1 or arguments.env[0] == "all"):
        raise UsageError(f"--env {' '.join(arguments.env)}: --trace runs one environment")
    check_environments(arguments)
    return configuration(pair, arguments)


def traced_pair(name: str) -> Pair:
    """The algorithm and mode of --trace. Raises UsageError."""
    algorithm, _, mode = name.lower().partition("_")
    known = [(a, m) for a in ALGORITHMS for m in MODES if (a, m) not in NO_SUCH_RUN]
    known += [(a, "distributed") for a in ALGORITHMS if default_config_path(a, "distributed").exists()]
    if (algorithm, mode) not in known:
        possible = ", ".join("_".join(pair) for pair in known)
        raise UsageError(f"--trace {name}: possible are {possible}")
    return algorithm, mode
