"""Format numbers, times and rows of text for a terminal of 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WIDTH = 72  # the length of the rules between blocks
COLUMNS = 80


def clock(seconds: float) -> str:
    """Return seconds as H:MM:SS."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def short(number: int) -> str:
    """Return a number in fewer than ten characters: 9,999,999, then 10.0M."""
    return f"{number:,}" if number < 10_000_000 else f"{number / 1e6:,.1f}M"


def brief(number: float) -> str:
    """Return a number in at most six characters: 999, 12.3k, 1.2M, 126.7M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.99995 * size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_rows(rows: Mapping[str, str | Path], indent: int) -> None:
    """Print names and texts, with the texts in column `indent`. Texts are wrapped, paths are not."""
    for name, value in rows.items():
        lines = [str(value)]
        if isinstance(value, str):
            lines = textwrap.wrap(value, COLUMNS - indent, break_long_words=False, break_on_hyphens=False)
        print(f"{name:<{indent}}" + f"\n{' ' * indent}".join(lines or [""]))


def tick_text(value: float, ticks: NDArray[np.float64]) -> str:
    """Return a tick's label, with as many decimals as the distance between the ticks needs."""
    step = float(np.diff(ticks).min()) if len(ticks) > 1 else 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-6))  # steps are 1, 2 or 5 times a power of ten
    return f"{value:,.{decimals}f}".replace("-", "\u2212")


def count_text(count: float) -> str:
    """Return a count in short form: 500, 100k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            return f"{count / size:.4g}{letter}"
    return f"{count:.4g}"


def duration_text(seconds: float) -> str:
    """Return a time in the unit that fits: 14 seconds, 4.8 minutes, 8.0 hours."""
    if seconds < 60:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.1f} minutes" if seconds < 3600 else f"{seconds / 3600:.1f} hours"
