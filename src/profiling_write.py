"""Writing what a profile recommends as a configuration file that can be run, read and changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from src.config import Config, flat_settings
from src.config_file import build_config, dump_config, parse_yaml, read_config_file, set_value
from src.errors import RunError, UsageError
from src.profiling import Profile, Setup
from src.profiling_advice import describe_setup, settings_of
from src.project import PROJECT, default_config_path

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
    own = settings_of(setup, config)
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
