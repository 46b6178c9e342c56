"""Numbers in few letters, for axes, tables and headings."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def tick_text(value: float, ticks: NDArray[np.float64]) -> str:
    """A tick's value with thousands separators and as many decimals as the distance between ticks needs."""
    step = float(np.diff(ticks).min()) if len(ticks) > 1 else 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-6))  # steps are 1, 2 or 5 times a power of ten
    return f"{value:,.{decimals}f}".replace("-", "\u2212")


def count_text(count: float) -> str:
    """A count in few letters: 500, 100k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            return f"{count / size:.4g}{letter}"
    return f"{count:.4g}"


def duration_text(seconds: float) -> str:
    """A time in its natural unit: 14 seconds, 4.8 minutes, 8.0 hours."""
    if seconds < 60:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.1f} minutes" if seconds < 3600 else f"{seconds / 3600:.1f} hours"
