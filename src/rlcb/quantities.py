"""Times and counts as people write them: `1h30m`, `90s`, `1M`, `250k`. Files and settings hold plain numbers.

Imports nothing outside the standard library.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

SECONDS = {"d": 86_400, "h": 3600, "min": 60, "m": 60, "s": 1}
UNITS = {"h": "hours", "m": "minutes", "s": "seconds"}
POWERS = {"k": 3, "K": 3, "M": 6, "G": 9}
MOST_DIGITS = 28  # of a count: Decimal's precision, and 1e999999999 would take all memory
_PART = re.compile(r"(\d+\.?\d*|\.\d+)\s*(d|h|min|m|s)\s*")


def parse_duration(text: str, unit: str) -> float:
    """Return a time in `unit`: `1h30m`, `30m`, `90s`, `2d`, or a plain number, which is in `unit` already.

    `unit` is `h`, `m` or `s`. Raises ValueError, which says what is expected.
    """
    text = text.strip()
    try:
        return float(text)
    except ValueError:
        pass
    parts = list(_PART.finditer(text))
    sizes = [SECONDS[part[2]] for part in parts]
    if not parts or "".join(part[0] for part in parts) != text or sizes != sorted({*sizes}, reverse=True):
        raise ValueError(f"expected a time such as 1h30m, 30m, 90s or 0.5 (in {UNITS[unit]})")
    return math.fsum(float(part[1]) * size for part, size in zip(parts, sizes)) / SECONDS[unit]


def parse_count(text: str) -> int:
    """Return a whole number: `1000`, `1_000_000`, `1e6`, `250k`, `1.5M`, `1G`.

    Raises ValueError, which says what is expected.
    """
    text = text.strip()
    power = POWERS.get(text[-1:], 0)
    digits = text[:-1] if power else text
    try:
        number = Decimal(digits).scaleb(power)  # exact, where a float has 53 bits
        small = number.is_finite() and max(len(digits), number.adjusted()) < MOST_DIGITS
        if small and number == int(number):
            return int(number)
    except ArithmeticError:
        pass
    raise ValueError("expected an integer such as 1000, 250k or 1M")
