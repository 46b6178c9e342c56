"""The flags of profile_cpu.py as configurations, and the recommendation as a configuration file."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rlcb.config.algorithms import ALGORITHMS, ONE_MACHINE, WHY_NOT
from rlcb.config.config import Config, flat_settings
from rlcb.config.games import GAMES, canonical_id, check_environment
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
from rlcb.paths import default_config_path, shown_path
from rlcb.profiling.advice import AlgorithmMode, describe_setup, setup_settings
from rlcb.suggestion import did_you_mean

COMMENT = 30  # the column of comments in config/*.yaml
COMMENTS = {
    "env.num_envs": "in all",
    "parallel.num_workers": "predicted to be fastest",
    "impala.num_actors": "predicted to be fastest",
    "impala.num_learners": "predicted to be fastest",
    "hardware.num_threads": "of each process",
    "hardware.microbatch_size": "no measured size is faster",
}


def pair_of_file(path: Path) -> AlgorithmMode | None:
    """Return the (algorithm, mode) at the end of a file's name, such as local_ppo_parallel.yaml, or None."""
    found = re.search(rf"(?:^|_)({'|'.join(ALGORITHMS)})_({'|'.join(ONE_MACHINE)})$", path.stem)
    return (found[1], found[2]) if found else None


def refuse_if_exists(path: Path, overwrite: bool) -> None:
    """Raise UsageError if a configuration cannot be written to `path`."""
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists; use --overwrite to replace it")
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--write {path}: the name must end in .yaml")
    if is_overlay(path):
        raise UsageError(
            f"--write {path}: it is an overlay (it has a section `when`), and this command writes whole "
            "configurations; give the name of another file"
        )


def is_overlay(path: Path) -> bool:
    """Whether `path` is an overlay (rlcb.config.yaml_file.read_config_files); False for any broken file."""
    with contextlib.suppress(UsageError):
        return "when" in read_config_file(path)
    return False


def write_setup(path: Path, config: Config, setup: Setup, profile: Profile, overwrite: bool) -> None:
    """Write `config` with the recommended setup as a configuration file.

    The file keeps all other lines and comments of config/<algorithm>_<mode>.yaml. Raises UsageError if the
    file exists, RunError if it cannot be written.
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
    """Return the text of the configuration file that `write_setup` writes."""
    base = default_config_path(config.algorithm, config.mode)
    recommended, data = setup_settings(setup, config), config.model_dump()
    for key, value in recommended.items():
        set_value(data, key, value, "the recommendation")
    wanted = build_config(data, "the recommendation")
    before = flat_settings(build_config(read_config_file(base)))
    body = base.read_text(encoding="utf-8")
    for key, value in flat_settings(wanted).items():
        if key in recommended or value != before.get(key):
            comment = COMMENTS[key] if key in recommended else "from the flags of profile_cpu.py"
            body = with_value(body, key, value, comment)
    edited = None
    with contextlib.suppress(UsageError):  # a setting in a nested section, or a file in another layout
        edited = build_config(parse_yaml(body, "the new file"), "the new file")
    if edited != wanted:
        body = dump_config(wanted)
    machine = profile.machine
    head = (
        f"# {config.algorithm.upper()}, {config.mode}, for this machine: {machine.cpu_model}, "
        f"{machine.usable_cores} usable cores.\n"
        f"# Written by profile_cpu.py from {profile.file_name}, measured {profile.measured_at} with the "
        f"{profile.network.name} network.\n"
        f"# {describe_setup(setup, config)}: predicted {setup.predicted_fps:,.0f} timesteps/s.\n"
        f"# Everything else is as in {shown_path(base)}.\n"
    )
    body = re.sub(r"\A(#.*\n)+", "", body)  # the old head describes the values of the old file
    return f"{head}{body.rstrip()}\n"


def with_value(text: str, key: str, value: Any, comment: str) -> str:
    """Return YAML text with one `section.name` setting replaced, or added at the end of its section."""
    section, name = key.split(".", 1)
    lines = text.rstrip("\n").split("\n")
    scalar = yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")
    line = f"{f'  {name}: {scalar}':<{COMMENT - 1}} # {comment}"
    head = re.compile(rf"{re.escape(section)}:\s*(#.*)?$")
    start = next((index for index, each in enumerate(lines) if head.match(each)), None)
    if start is None:
        return "\n".join([*lines, "", f"{section}:", line]) + "\n"
    end = next((i for i in range(start + 1, len(lines)) if re.match(r"\S", lines[i])), len(lines))
    for index in range(start + 1, end):
        if re.match(rf"  {re.escape(name)}\s*:", lines[index]):
            lines[index] = line
            break
    else:
        while not lines[end - 1].strip():
            end -= 1
        lines.insert(end, line)
    return "\n".join(lines) + "\n"


def selected_pairs(arguments: argparse.Namespace) -> list[AlgorithmMode]:
    """Return the algorithms and modes that the flags select. Raises UsageError if there are none."""
    algorithms, modes = arguments.algorithms or list(ALGORITHMS), arguments.modes or list(ONE_MACHINE)
    pairs = [(name, mode) for name in algorithms for mode in modes if mode in ALGORITHMS[name].modes]
    if not pairs:
        name, mode = algorithms[0], modes[0]
        raise UsageError(f"--algorithms {name} --modes {mode}: {WHY_NOT[name, mode]}")
    return pairs


def configuration(pair: AlgorithmMode, arguments: argparse.Namespace) -> Config:
    """Return the default configuration of an algorithm and mode with the changes that the flags make."""
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
    return build_config(data)


def check_environments(arguments: argparse.Namespace) -> None:
    """Raise UsageError for an unknown environment in --env."""
    for name in arguments.env or ():
        if name != "all":
            check_environment(name, "--env")


def configurations(
    pairs: Sequence[AlgorithmMode], arguments: argparse.Namespace
) -> dict[AlgorithmMode, Config]:
    """Return the configuration of every pair.

    Raises UsageError if they have different networks or environments, since a profile has one of each.
    """
    check_environments(arguments)
    configs = {pair: configuration(pair, arguments) for pair in pairs}

    def subject(config: Config) -> tuple[Any, ...]:
        return env_key(config.env), resolved_model(config.model, config.env.is_image)

    for pair, config in configs.items():
        if subject(config) != subject(configs[pairs[0]]):
            raise UsageError(
                f"{default_config_path(*pair)} has another network or environment than "
                f"{default_config_path(*pairs[0])}: give --network and --env, or name --algorithms"
            )
    return configs


def environments(config: Config, names: Sequence[str] | None) -> list[EnvConfig]:
    """Return the environments to measure: config's first, then those of --env."""
    wanted = [each for name in names or () for each in (GAMES if name == "all" else (name,))]
    ids = dict.fromkeys([config.env.id, *map(canonical_id, wanted)])
    return [config.env.of_id(each) for each in ids]


def files_to_write(
    arguments: argparse.Namespace, pairs: Sequence[AlgorithmMode]
) -> dict[Path, AlgorithmMode]:
    """Return the files of --write and the algorithm and mode of each. Raises UsageError."""
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
    """Return the configuration of --trace. Raises UsageError, also for flags that --trace would ignore."""
    algorithm, _, mode = arguments.trace.lower().partition("_")
    known = [(each.name, known_mode) for each in ALGORITHMS.values() for known_mode in each.modes]
    if (algorithm, mode) not in known:
        possible = ", ".join("_".join(pair) for pair in known)
        suggestion = did_you_mean(arguments.trace, possible.split(", "))
        raise UsageError(f"--trace {arguments.trace}: possible are {possible}{suggestion}")
    if arguments.write or arguments.overwrite or arguments.algorithms or arguments.modes:
        raise UsageError("--trace names the algorithm and mode by itself, and --write writes nothing then")
    if arguments.env and (len(arguments.env) > 1 or arguments.env[0] == "all"):
        raise UsageError(f"--env {' '.join(arguments.env)}: --trace runs one environment")
    check_environments(arguments)
    return configuration((algorithm, mode), arguments)
