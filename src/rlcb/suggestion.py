"""The nearest known name for a misspelled one. Imports nothing outside the standard library."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: object, known: Iterable[object]) -> str | None:
    """Return the known name that is most similar to `word`, whatever the case; None if none is similar."""
    names = {str(name).lower(): str(name) for name in known}
    found = difflib.get_close_matches(str(word).lower(), names, n=1)
    return names[found[0]] if found else None


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """Return `; did you mean NAME?` for the end of a message; "" if the name is known or unlike all."""
    name = nearest(word, known)
    return "" if name in (None, str(word)) else f"; did you mean {name}?"
