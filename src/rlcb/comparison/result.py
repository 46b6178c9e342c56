"""What `rlcb.compare` returns: findings and a tidy table, readable in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, overload

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.findings import Finding, findings
from rlcb.comparison.format import with_interval
from rlcb.comparison.metrics import BY_KEY
from rlcb.comparison.statistics import IntervalEstimate

SHOWN = ("test_return", "full_return", "return_at_wall_clock", "return_at_timesteps", "average_fps")
"""The metrics that are printed; the table has all."""


class ComparisonResult(Sequence[Finding]):
    """The findings of a comparison, as a sequence, and its numbers.

    `findings` holds the findings; `str(finding)` is a sentence. `table` is a list of dictionaries, one for
    each game, group and metric: game, group, metric, unit, mean, low and high (the 95 % interval; None for
    one seed) and n (seeds). `pandas.DataFrame(result.table)` makes a data frame.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.findings: list[Finding] = findings(comparison)
        self.table: list[dict[str, Any]] = [
            {
                "game": game.game,
                "group": result.group.label,
                "metric": key,
                "unit": BY_KEY[key].unit,
                "mean": found.mean,
                "low": found.low,
                "high": found.high,
                "n": found.n,
            }
            for game in comparison.games
            for result in game.groups
            for key in BY_KEY
            if (found := result.estimates.get(key)) is not None
        ]

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> list[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | list[Finding]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def _shown(self) -> list[list[str]]:
        """The cells of the printed table: a row for each game and group, a column for each metric of SHOWN
        that some group has, and the number of seeds."""
        keys = [key for key in SHOWN if any(row["metric"] == key for row in self.table)]
        groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for row in self.table:
            groups.setdefault((row["game"], row["group"]), {})[row["metric"]] = row
        lines = [["game", "group", *(BY_KEY[key].title for key in keys), "n"]]
        for names, rows in groups.items():
            cells = [cell_text(rows[key]) if key in rows else "" for key in keys]
            lines.append([*names, *cells, str(max(rows[key]["n"] for key in keys if key in rows))])
        return lines

    def __repr__(self) -> str:
        lines = self._shown()
        widths = [max(map(len, column)) for column in zip(*lines)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([*map(str, self.findings), "", *table])

    def _repr_html_(self) -> str:
        """Return the findings and the table for a notebook."""
        head, *body = self._shown()
        sentences = "".join(f"<li>{escape(str(each))}</li>" for each in self.findings)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in body)
        names = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        return f"<ul>{sentences}</ul><table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"


def cell_text(row: dict[str, Any]) -> str:
    """Return a row's mean and interval in short form."""
    estimate = IntervalEstimate(row["mean"], None, row["low"], row["high"], row["n"])
    return with_interval(BY_KEY[row["metric"]], estimate)
