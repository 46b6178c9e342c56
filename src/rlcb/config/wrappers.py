"""The setting env.wrappers: names of Gymnasium wrappers, with or without arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
FORMS = "module:Class or {wrapper: module:Class, argument: value}"


def wrapper_and_arguments(entry: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name module:Class and the keyword arguments of an entry of env.wrappers.

    Lists become tuples, which YAML does not have and Gymnasium's wrappers expect.
    """
    if isinstance(entry, str):
        return entry, {}
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return str(arguments.pop("wrapper")), arguments


def _checked(entry: Any) -> Any:
    """Return an entry in its shortest form. Raises ValueError for anything but the two FORMS."""
    name, arguments = entry, {}
    if isinstance(entry, Mapping):
        arguments = {key: value for key, value in entry.items() if key != "wrapper"}
        name = entry.get("wrapper")
    named = all(isinstance(key, str) and key.isidentifier() for key in arguments)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not named:
        raise ValueError(f"{entry!r} is not of the form {FORMS}")
    return {"wrapper": name, **arguments} if arguments else name


Wrapper = Annotated[str | dict[str, Any], BeforeValidator(_checked)]
"""A wrapper of a single environment: its name, or its name and keyword arguments."""
