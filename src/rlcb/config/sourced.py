"""Plain settings that remember where each value comes from: a flag, or a line of a file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from rlcb.config.validation import Source


class SourcedSettings(dict[str, Any]):
    """Settings as nested dictionaries, before validation, with the source of each by dotted key.

    A source is a text such as `--gamma`, `--set training.gamma` or `my.yaml line 3`. Settings without one
    have their default.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, sources: Mapping[str, str] | None = None):
        super().__init__(values or {})
        self.sources = dict(sources or {})

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> SourcedSettings:
        """Return settings that all come from one source."""
        settings = cls(values)
        for key, value in values.items():
            settings.record(key, value, source)
        return settings

    @classmethod
    def of_flags(cls, values: Mapping[str, Any]) -> SourcedSettings:
        """Return settings of which each comes from the flag with its name."""
        settings = cls(values)
        for key, value in values.items():
            names = [f"{key}.{name}" for name in value] if isinstance(value, dict) else []
            settings.sources.update({name: flag_of(name) for name in (key, *names)})
        return settings

    def source(self, key: str) -> str | None:
        """Return the source of a setting; None if it has its default. An element of a list has the list's."""
        while key not in self.sources and key.rpartition(".")[2].isdigit():
            key = key.rpartition(".")[0]
        return self.sources.get(key)

    def record(self, key: str, value: Any, source: str) -> None:
        """Remember the source of a value, and of everything in it."""
        self.sources[key] = source
        if isinstance(value, dict):
            for name, part in value.items():
                self.record(f"{key}.{name}", part, source)

    def part(self, prefix: str, values: Mapping[str, Any]) -> SourcedSettings:
        """Return `values`, which are below the dotted key `prefix` here, as settings of their own."""
        start = f"{prefix}."
        below = {key: text for key, text in self.sources.items() if key.startswith(start)}
        return SourcedSettings(values, {key.removeprefix(start): text for key, text in below.items()})

    def copy(self) -> SourcedSettings:
        """Return a deep copy."""
        return SourcedSettings(copy.deepcopy(dict(self)), self.sources)


def source_in(settings: Mapping[str, Any], name: str | None = None) -> Source:
    """Return what tells the source of a setting; for plain dictionaries it is always `name`."""
    return settings.source if isinstance(settings, SourcedSettings) else lambda key: name


def sources_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the sources of settings; none for a plain dictionary."""
    return settings.sources if isinstance(settings, SourcedSettings) else {}


def flag_of(key: str) -> str:
    """Return the flag of a key of a study or tuning: `num_envs` -> --num-envs, `set.KEY` -> --set KEY."""
    name, _, rest = key.partition(".")
    return f"--{name.replace('_', '-')} {rest}".rstrip()


def place_of(sources: Mapping[str, str], key: str) -> str:
    """Return how a message names a key of a study or tuning: its flag, or its file, line and name."""
    source = sources.get(key) or flag_of(key)
    return source if source.startswith("--") else f"{source}: {key.replace('.', ' ', 1)}"
