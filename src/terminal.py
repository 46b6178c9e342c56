"""How text is laid out for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

WIDTH = 72  # of rules between blocks
COLUMNS = 80


def clock(seconds: float) -> str:
    """Hours, minutes and seconds as H:MM:SS."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def short(number: int) -> str:
    """A number that stays below ten characters: 9,999,999, then 10.0M."""
    return f"{number:,}" if number < 10_000_000 else f"{number / 1e6:,.1f}M"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_rows(rows: Mapping[str, str | Path], indent: int) -> None:
    """Print names and what is said of them, beginning in column `indent`; paths are never broken."""
    for name, value in rows.items():
        lines = [str(value)]
        if isinstance(value, str):
            lines = textwrap.wrap(value, COLUMNS - indent, break_long_words=False, break_on_hyphens=False)
        print(f"{name:<{indent}}" + f"\n{' ' * indent}".join(lines or [""]))
