"""Configurations as YAML: read, merge, change settings, validate, write."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rlcb.config.algorithms import ALGORITHMS, MODES
from rlcb.config.config import Config
from rlcb.config.sourced import SourcedSettings, source_in
from rlcb.config.validation import describe_validation_error, nearest_setting
from rlcb.errors import UsageError
from rlcb.paths import PROJECT, default_config_path, shown_path
from rlcb.suggestion import did_you_mean

# Old places of settings, from earlier versions, and where they are now.
ALIASES = {
    "training.num_envs": "env.num_envs",
    "training.device": "hardware.device",
    "training.num_threads": "hardware.num_threads",
    "hardware.num_envs": "env.num_envs",
}


RUN_NAMES = (
    *ALGORITHMS,
    *MODES,
    *(f"{name}_{mode}" for name, algorithm in ALGORITHMS.items() for mode in algorithm.modes),
)
"""Names that describe runs in the section `when` of an overlay."""


MERGE_TAG = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML with YAML 1.2's floats (`1e-4` is a number) and without silently repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE_TAG:
                continue  # `<<` merges defaults, which may be overridden
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # refused below
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """Return a number, or the text `1:30`, which YAML 1.1 would read as 90."""
    if ":" in node.value:
        return loader.construct_scalar(node)
    return loader.construct_yaml_int(node) if node.tag.endswith("int") else loader.construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.\d[\d_]*|\d[\d_]*(\.[\d_]*)?)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


DEEPEST = 6
"""Levels of keys whose lines are known. The limit ends the walk through a mapping that contains itself."""


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML text. Raises UsageError that names `source` and the line."""
    return _parse(text, source)[0]


def parse_sourced(text: str, path: Path) -> Any:
    """Parse the YAML text of a file; a mapping becomes SourcedSettings with the line of each key.

    Raises UsageError that names the file and the line.
    """
    name = shown_path(path)
    data, lines = _parse(text, name)
    if not isinstance(data, dict):
        return data
    return SourcedSettings(data, {key: f"{name} line {line}" for key, line in lines.items()})


def _parse(text: str, source: str) -> tuple[Any, dict[str, int]]:
    """Return the content of YAML text and the line of each key. Raises UsageError."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = _key_lines(node)
        return (None if node is None else loader.construct_document(node)), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UsageError(
            f"{source}{where}: not valid YAML: {getattr(error, 'problem', None) or error}"
        ) from None


def _key_lines(node: yaml.Node | None, prefix: str = "", depth: int = 0) -> dict[str, int]:
    """Return the line of each key below a node, from 1, by dotted key."""
    if isinstance(node, yaml.SequenceNode):  # several mappings after `<<`
        parts = [_key_lines(part, prefix, depth + 1) for part in reversed(node.value) if depth < DEEPEST]
        return {key: line for part in parts for key, line in part.items()}
    lines: dict[str, int] = {}
    if not isinstance(node, yaml.MappingNode) or depth == DEEPEST:
        return lines
    for key, value in node.value:
        if key.tag == MERGE_TAG:
            lines = {**_key_lines(value, prefix, depth + 1), **lines}
        elif isinstance(key, yaml.ScalarNode):
            lines[prefix + key.value] = key.start_mark.line + 1
            if isinstance(value, yaml.MappingNode):
                lines |= _key_lines(value, f"{prefix}{key.value}.", depth + 1)
    return lines


def read_config_file(path: Path) -> SourcedSettings:
    """Read a configuration file into plain sections, with settings moved from their old places (ALIASES).

    Raises UsageError if the file is missing, is not YAML, or gives a setting twice with different values.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read config {path}: not a text file") from None
    data = parse_sourced(text, path)
    if data is None:
        data = SourcedSettings()
    if not isinstance(data, SourcedSettings):
        raise UsageError(
            f"{path}: expected sections (env, model, training, ...), found {type(data).__name__}"
        )
    _move_aliases(data)
    return data


def read_config_files(paths: Sequence[Path], algorithm: str, mode: str) -> SourcedSettings:
    """Read configuration files and merge them into plain sections: later files override earlier ones.

    A file with a section `when` is an overlay: settings below `when.NAME` apply only to runs that NAME
    describes, which is an algorithm, a mode, or both (`ppo`, `parallel`, `ppo_parallel`). An overlay that
    comes first goes over the default file of the algorithm and mode. A relative path that does not exist
    here is looked up in the project's folder. Raises UsageError that names the file and the line.
    """
    merged = SourcedSettings()
    names = (algorithm, mode, f"{algorithm}_{mode}")
    for index, path in enumerate(paths):
        data = read_config_file(found_config(path))
        overlay = data.pop("when", None)
        if overlay is None:
            _merge(merged, data)
            continue
        _check_overlay(data, overlay)
        if not data and not set(names) & set(overlay):
            raise UsageError(f"{path}: has nothing for {algorithm} {mode}; it is for {', '.join(overlay)}")
        if index == 0:
            merged = read_config_file(default_config_path(algorithm, mode))
        _merge(merged, data)
        for name in names:
            if name in overlay:
                part = data.part(f"when.{name}", overlay[name])
                _move_aliases(part)
                _merge(merged, part)
    return merged


def _check_overlay(data: SourcedSettings, overlay: Any) -> None:
    """Raise UsageError if the section `when` of the file `data` does not name algorithms and modes."""
    if not isinstance(overlay, dict) or not all(isinstance(part, dict) for part in overlay.values()):
        where = data.source("when")
        raise UsageError(f"{where}: when: expected sections below the name of an algorithm or mode")
    for name in overlay:
        if name not in RUN_NAMES:
            expected = f"expected one of {', '.join(RUN_NAMES)}{did_you_mean(name, RUN_NAMES)}"
            raise UsageError(f"{data.source(f'when.{name}')}: when.{name}: {expected}")


def require_run(data: SourcedSettings, algorithm: str, mode: str, whose: str) -> None:
    """Write algorithm and mode into settings that lack them. Raises UsageError if they are of another run.

    `whose` ends the message, for example `this command runs`.
    """
    for key, expected in (("algorithm", algorithm), ("mode", mode)):
        if data.setdefault(key, expected) != expected:
            raise UsageError(f"{data.source(key)}: {key} = {data[key]!r}, but {whose} {algorithm} {mode}")


def found_config(path: Path) -> Path:
    """Return `path`, or the file of that name in the project's folder if there is none at `path`."""
    return path if path.exists() or not (PROJECT / path).exists() else PROJECT / path


def _merge(settings: SourcedSettings, changes: SourcedSettings) -> None:
    """Write `changes` over `settings`, section by section. Raises UsageError if a section becomes a value."""

    def merge(before: dict[str, Any], after: Mapping[str, Any], prefix: str) -> None:
        for key, value in after.items():
            old = before.get(key)
            if isinstance(old, dict) and isinstance(value, dict):
                merge(old, value, f"{prefix}{key}.")
            elif isinstance(old, dict) and old:
                if value is not None:  # `env:` with nothing below it changes nothing
                    where = changes.source(prefix + key)
                    raise UsageError(f"{where}: {prefix}{key} = {value!r}: expected a section")
            else:
                before[key] = value

    merge(settings, changes, "")
    settings.sources |= changes.sources


def _move_aliases(data: SourcedSettings) -> None:
    """Move settings from their old places (ALIASES) to the new ones. Raises UsageError if they contradict."""
    for alias, home in ALIASES.items():
        section, key = alias.split(".")
        if not isinstance(data.get(section), dict) or key not in data[section]:
            continue
        value = data[section].pop(key)
        home_section, home_key = home.split(".")
        if data.get(home_section) is None:
            data[home_section] = {}
        target = data[home_section]
        if not isinstance(target, dict):
            continue  # validation names the malformed section
        if home_key in target and target[home_key] != value:
            raise UsageError(
                f"{data.source(alias)}: {alias} = {value!r} contradicts {home} = {target[home_key]!r} "
                f"({data.source(home)}); keep one of them"
            )
        target[home_key] = value
        if alias in data.sources:
            data.sources.setdefault(home, data.sources[alias])


def set_value(settings: dict[str, Any], dotted_key: str, value: Any, source: str) -> None:
    """Set `section.key` (or `section.sub.key`) in plain sections. SourcedSettings remember the source.

    Raises UsageError, which names `source`, for a key of another form.
    """
    home = ALIASES.get(dotted_key, dotted_key)
    *sections, key = home.split(".")
    if not sections or not all([*sections, key]):
        meant = nearest_setting(dotted_key, Config)
        example = "for example training.gamma=0.99" if meant is None else f"did you mean {meant}?"
        raise UsageError(f"{source}: expected section.key=value; {example}")
    data = settings
    for section in sections:
        if data.get(section) is None:
            data[section] = {}
        data = data[section]
        if not isinstance(data, dict):
            raise UsageError(f"{source}: {section} is not a section")
    data[key] = value
    if isinstance(settings, SourcedSettings):
        settings.record(home, value, source)


def parse_assignments(items: Sequence[str], flag: str) -> dict[str, str]:
    """Split the `KEY=VALUE` words of a flag into a dictionary. Raises UsageError."""
    values: dict[str, str] = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator or not key.strip() or not value.strip():
            raise UsageError(f"{flag} {item}: expected {'NAME=FILE' if flag == '--config' else 'KEY=VALUE'}")
        values[key.strip()] = value.strip()
    return values


DECIDED_BY_FLAGS = {
    "algorithm": "--algorithms",
    "env.id": "--envs",
    "training.seed": "--seeds",
    "training.duration_hours": "--duration",
    "training.total_timesteps": "--total-timesteps",
    "logging.checkpoint_dir": "--output-dir",
    "logging.log_dir": "--output-dir",
}
"""Settings that a study or tuning decides for each of its runs, with the flags that set them."""


def split_key(key: str) -> tuple[str, str]:
    """Split a setting into scope and name: `ppo:training.n_epochs` -> ("ppo", "training.n_epochs")."""
    scope, separator, name = key.partition(":")
    return (scope.lower(), name) if separator else ("", key)


def parse_settings(items: Sequence[str]) -> dict[str, Any]:
    """Parse the `KEY=VALUE` words of `--set`; each value is YAML. Raises UsageError."""
    return {key: parse_yaml(text, f"--set {key}") for key, text in parse_assignments(items, "--set").items()}


def build_config(data: Mapping[str, Any], name: str | None = None) -> Config:
    """Return the validated configuration of plain sections.

    Raises UsageError: one line with the key, the value and the rule of each invalid setting, and its source.
    The source of settings in a plain dictionary is `name`.
    """
    sections = {
        key: {} if value is None and key in Config.model_fields else value for key, value in data.items()
    }
    try:
        return Config.model_validate(sections)
    except ValidationError as error:
        raise UsageError(describe_validation_error(error, Config, source_in(data, name))) from None


def dump_config(config: Config) -> str:
    """Return a configuration as YAML text; `read_config_file` and `build_config` restore the same object."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=110)
