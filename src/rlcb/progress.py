"""A progress bar on a terminal."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from rlcb.text import COLUMNS

CELLS = 10  # least width of the bar itself
FORMAT, FRAME = "{percentage:3.0f}%|{bar}| {desc}", 7  # of tqdm; its columns beside the bar and the text


class ProgressBar:
    """A bar with a text that is never cut off: parts that do not fit beside ten cells are left out."""

    def __init__(self, leave: bool) -> None:
        """Show the bar at 0 %. `leave` keeps it on the screen after `close`."""
        tqdm.set_lock(threading.RLock())  # a lock shared between processes would leak if a worker is killed
        self._bar: tqdm[Any] = tqdm(total=1.0, bar_format=FORMAT, dynamic_ncols=True, leave=leave)

    @classmethod
    def on_terminal(cls, leave: bool) -> ProgressBar | None:
        """Return a bar if stderr is a terminal, else None."""
        return cls(leave) if sys.stderr.isatty() else None

    def show(self, share: float, parts: Sequence[str]) -> None:
        """Move the bar to `share`, from 0 to 1, and show the parts of a text, the most important first."""
        self._bar.n = min(1.0, max(0.0, share))
        self._bar.set_description_str(fitted(parts, terminal_columns()), refresh=True)

    def print_line(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.clear()
        print(text, flush=True)
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


def terminal_columns() -> int:
    """Return the width of the terminal of stderr; 80 if it is unknown."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):
        return COLUMNS


def fitted(parts: Sequence[str], columns: int) -> str:
    """Join the parts that fit beside the bar on a terminal of `columns`; leave out the last parts first."""
    kept = list(parts)
    while len(kept) > 1 and len(" · ".join(kept)) > columns - FRAME - CELLS:
        kept.pop()
    return " · ".join(kept)
