"""What is wrong with settings, in one line: key, value, rule, nearest name, and where the value is from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pydantic import BaseModel, ValidationError

from rlcb.suggestion import did_you_mean, nearest

Source = Callable[[str], str | None]
"""Returns where the value of a setting is from, such as `--gamma` or `my.yaml line 3`; None: its default."""


def describe_validation_error(
    error: ValidationError, model: type[BaseModel], source: Source = lambda key: None
) -> str:
    """Return all problems of a pydantic error on one line: `SOURCE: section.key = value: rule; ...`.

    `model` is the class that was validated. A problem of several settings ends with the source of each.
    """
    problems = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        rule = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            problem = f"{key} = {item['input']!r}: unknown key{_known_keys(item['loc'], model)}"
        elif item["type"] == "value_error":
            problem = f"{key}: {rule}" if key and key not in rule else rule
        else:
            problem = f"{key} = {item['input']!r}: {rule[0].lower()}{rule[1:]}"
        if item["type"] == "literal_error":
            problem += did_you_mean(item["input"], re.findall(r"'([^']*)'", item["ctx"]["expected"]))
        keys = _keys_in(rule, model) if item["type"] == "value_error" else []
        problems.append(with_sources(problem, keys or [key], source))
    return "; ".join(problems)


def with_sources(problem: str, keys: Sequence[str], source: Source) -> str:
    """Return a problem with the source of its settings: one source before it, several after it."""
    known = {key: source(key) for key in keys}
    names = {*known.values()}
    if len(names) > 1:
        each = (f"{key} from {name or 'its default'}" for key, name in known.items())
        return f"{problem} ({', '.join(each)})"
    (name,) = names
    return problem if name is None else f"{name}: {problem}"


def setting_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted keys of all settings and sections of a model."""
    names = []
    for key, field in model.model_fields.items():
        names.append(prefix + key)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += setting_names(field.annotation, f"{prefix}{key}.")
    return names


def nearest_setting(key: str, model: type[BaseModel]) -> str | None:
    """Return the setting that an unknown dotted key most probably means, or None.

    A setting of another section with exactly this name comes first, then similar names in the same section,
    then similar dotted keys.
    """
    names, (section, _, name) = setting_names(model), key.rpartition(".")
    for known in names:
        if known.rpartition(".")[2] == name:
            return known
    siblings = [known for known in names if known.rpartition(".")[0] == section]
    return nearest(key, siblings) or nearest(key, names) or nearest(f"training.{name}", names)


def _known_keys(location: Sequence[int | str], model: type[BaseModel]) -> str:
    """Return the keys of the section in which a key is unknown, and the nearest setting, for a message."""
    section: type[BaseModel] = model
    for part in location[:-1]:
        field = section.model_fields.get(str(part))
        annotation = field.annotation if field is not None else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ""
        section = annotation
    meant = nearest_setting(".".join(map(str, location)), model)
    suggestion = "" if meant is None else f"; did you mean {meant}?"
    return f" (known: {', '.join(section.model_fields)}){suggestion}"


def _keys_in(rule: str, model: type[BaseModel]) -> list[str]:
    """Return the settings that a rule names, each once: dotted keys, and others if a value follows."""
    names = {*setting_names(model)}
    words = (dotted or plain for dotted, plain in re.findall(r"(\w+(?:\.\w+)+)|\b(\w+)(?= = )", rule))
    return list(dict.fromkeys(word for word in words if word in names))
