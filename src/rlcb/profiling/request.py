"""Writing what a profile recommends as a configuration file that can be run, read and changed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rlcb.config.algorithms import ALGORITHMS, ONE_MACHINE
from rlcb.config.config import Config, flat_settings
from rlcb.config.games import GAMES, canonical_id, check_environment, procgen_game
from rlcb.config.settings import EnvConfig
from rlcb.config.yaml_file import (
    build_config,
    dump_config,
    parse_settings,
    parse_yaml,
    read_config_file,
    set_value,
)
from rlcb.errors import RunError, UsageError
from rlcb.machine.profile import Profile, Setup, env_key, resolved_model
from rlcb.paths import PROJECT, default_config_path
from rlcb.profiling.advice import describe_setup, setup_settings

COMMENT = 30  # the column of comments in config/*.yaml
NAMES = {
    "env.num_envs": "in all",
    "parallel.num_workers": "predicted to be fastest",
    "impala.num_actors": "predicted to be fastest",
    "impala.num_learners": "predicted to be fastest",
    "hardware.num_threads": "of each process",
    "hardware.microbatch_size": "none that was measured is faster",
}


def pair_of_file(path: Path) -> tuple[str, str] | None:
    """(algorithm, mode) that the name of a file ends in, as local_ppo_parallel.yaml; None if it does not."""
    found = re.search(r"(?:^|_)(ppo|a2c|a3c|impala)_(sequential|parallel)$", path.stem)
    return (found[1], found[2]) if found else None


def refuse_if_exists(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists; use --overwrite to replace it")
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--write {path}: the name must end in .yaml")


def write_setup(path: Path, config: Config, setup: Setup, profile: Profile, overwrite: bool) -> None:
    """Write a configuration like `config` with `setup` in it; what makes no difference stays as it stands in
    config/<algorithm>_<mode>.yaml, comments included.

    Raises UsageError if there is such a file already, RunError if it cannot be written.
    """
    refuse_if_exists(path, overwrite)
    text = configuration_text(config, setup, profile)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists; use --overwrite to replace it") from None
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def configuration_text(config: Config, setup: Setup, profile: Profile) -> str:
    """The text of the file."""
    base = default_config_path(config.algorithm, config.mode)
    own = setup_settings(setup, config)
    data = config.model_dump()
    for key, value in own.items():
        set_value(data, key, value, "the recommendation")
    wanted = build_config(data, "the recommendation")
    text = base.read_text(encoding="utf-8")
    standing = build_config(read_config_file(base), str(base))
    changes = {
        key: value
        for key, value in flat_settings(wanted).items()
        if key in own or value != flat_settings(standing).get(key)
    }
    head = describe_source(config, setup, profile, base)
    edited = text
    for key, value in changes.items():
        comment = NAMES[key] if key in own else "as profile_cpu.py was told"
        edited = with_value(edited, key, value, comment)
    if not same(edited, wanted):  # a setting of a section within a section, or another layout
        edited = dump_config(wanted)
    body = re.sub(r"\A(#.*\n)+", "", edited)  # the old head, which says where other values came from
    return f"{head}\n{body.rstrip()}\n"


def same(text: str, wanted: Config) -> bool:
    try:
        return build_config(parse_yaml(text, "the new file"), "the new file") == wanted
    except UsageError:
        return False


def describe_source(config: Config, setup: Setup, profile: Profile, base: Path) -> str:
    machine = profile.machine
    shown = base.relative_to(PROJECT) if base.is_relative_to(PROJECT) else base
    return "\n".join(
        f"# {line}"
        for line in (
            f"{config.algorithm.upper()}, {config.mode}, for this machine: {machine.cpu_model}, "
            f"{machine.usable_cores} usable cores.",
            f"Written by profile_cpu.py from {profile.file_name}, measured {profile.measured_at} with the "
            f"{profile.network.name} network.",
            f"{describe_setup(setup, config)}: predicted {setup.predicted_fps:,.0f} timesteps/s.",
            f"Everything else is as in {shown}.",
        )
    )


def with_value(text: str, key: str, value: Any, comment: str) -> str:
    """YAML text of sections with a setting of one of them replaced, or added at the section's end."""
    section, name = key.split(".", 1)
    lines = text.rstrip("\n").split("\n")
    scalar = yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")
    line = f"{f'  {name}: {scalar}':<{COMMENT - 1}} # {comment}"
    heads = [i for i, each in enumerate(lines) if re.match(rf"{re.escape(section)}:\s*(#.*)?$", each)]
    if not heads:
        return "\n".join([*lines, "", f"{section}:", line]) + "\n"
    first = heads[0] + 1
    end = next((i for i in range(first, len(lines)) if re.match(r"\S", lines[i])), len(lines))
    for index in range(first, end):
        if re.match(rf"  {re.escape(name)}\s*:", lines[index]):
            lines[index] = line
            return "\n".join(lines) + "\n"
    while end > first and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, line)
    return "\n".join(lines) + "\n"


Pair = tuple[str, str]
"""An algorithm and a mode."""


def selected_pairs(arguments: argparse.Namespace) -> list[Pair]:
    """The algorithms and modes that are meant. Raises UsageError if there are none."""
    algorithms, modes = arguments.algorithms or ALGORITHMS, arguments.modes or ONE_MACHINE
    pairs = [(a, m) for a in algorithms for m in modes if m in ALGORITHMS[a].modes]
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
            check_environment(name, "--env")


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
    known = [(name, mode) for name, algorithm in ALGORITHMS.items() for mode in algorithm.modes]
    if (algorithm, mode) not in known:
        possible = ", ".join("_".join(pair) for pair in known)
        raise UsageError(f"--trace {name}: possible are {possible}")
    return algorithm, mode
