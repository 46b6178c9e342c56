"""Format a comparison as text: for the terminal, as a report, and as Markdown."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence

from rich.box import Box
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.findings import data_warnings, headline
from rlcb.comparison.methods import methods
from rlcb.comparison.reference import reference_table, references, without_reference
from rlcb.comparison.tables import (
    Table,
    across_table,
    is_number_column,
    pairs_table,
    phases_table,
    results_table,
    runs_table,
)

WIDTH = 80
NAME_WIDTH, CELL_WIDTH = 28, 24  # largest widths of the first and the other columns: two groups fit into 80
WIDE, WIDE_NAME = 136, 36  # widths of the report and its first column: the widest tables fit in one block
PROSE = 110
TITLE = "COMPARISON OF RUNS"
HEADER_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
"""Draws one line of dashes, below the header."""


def main_tables(comparison: Comparison) -> list[Table]:
    """Return the main tables: results of each game, scores over games, published results."""
    tables = [results_table(game) for game in comparison.games]
    across = across_table(comparison)
    tables += [across] if across is not None else []
    return [*tables, *map(reference_table, references(comparison))]


def further_tables(comparison: Comparison) -> list[Table]:
    """Return the tables of tests, time shares and single runs."""
    tables = []
    for game in comparison.games:
        tables.append(pairs_table(game.pairs, f"Tests: {game.game}", comparison.baseline))
        tables += [table] if (table := phases_table(game)) is not None else []
    if comparison.across is not None and len(comparison.across.games) > 1:
        title = "Tests over games, normalised scores"
        tables.append(pairs_table(comparison.across.pairs, title, comparison.baseline))
    return [table for table in [*tables, runs_table(comparison)] if table.rows]


def all_warnings(comparison: Comparison) -> list[str]:
    """Return the warnings about the data, and about requested results that do not exist."""
    absent = without_reference(comparison) if comparison.options.reference else []
    found = data_warnings(comparison)
    if absent:
        found.append(f"No published figures exist for {', '.join(absent)} (Procgen, easy mode only).")
    return found


def unfairness(comparison: Comparison) -> list[str]:
    if not comparison.fairness:
        return ["No difference was found between the runs but the one being compared."]
    return [f"{each.aspect}: {each.text}" for each in comparison.fairness]


def terminal(comparison: Comparison, width: int = WIDTH) -> str:
    """Return the text for the terminal; `width` is the width of its tables."""
    return "\n".join(
        [
            *_title(TITLE),
            *_bullets([*headline(comparison), *all_warnings(comparison)]),
            *(line for table in main_tables(comparison) for line in ["", *layout(table, width)]),
            *_section("Not equal between these runs", unfairness(comparison)),
        ]
    )


def report(comparison: Comparison) -> str:
    """Return comparison_report.txt: all tables and the methods."""
    further = [line for table in further_tables(comparison) for line in ["", *layout(table, WIDE)]]
    made = _section("How the figures were made", methods(comparison))
    return "\n".join([terminal(comparison, WIDE), *further, *made, ""])


def _title(text: str) -> list[str]:
    return ["=" * WIDTH, text, "=" * WIDTH]


def _section(title: str, items: Sequence[str]) -> list[str]:
    return ["", title, "-" * len(title), *_bullets(items)]


def _bullets(items: Sequence[str]) -> list[str]:
    return [
        line
        for item in items
        for line in textwrap.wrap(
            item, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )
    ]


def layout(table: Table, width: int = WIDTH) -> list[str]:
    """Return a table as lines, in as many blocks as fit into `width`; each block repeats the first column."""
    first = NAME_WIDTH if width < WIDE else WIDE_NAME
    columns = list(zip(table.header, *table.rows))
    widths = []
    for index, column in enumerate(columns):
        longest = max(len(line) for cell in column for line in cell.split("\n"))
        widths.append(min(longest, CELL_WIDTH if index else first))
    lines = [table.title, "-" * len(table.title)]
    for number, block in enumerate(_blocks(widths, width)):
        # Cells hold names from files: as Text, rich reads no markup in them.
        grid = RichTable(box=HEADER_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for index in block:
            right = is_number_column(table, index)
            grid.add_column(
                Text(table.header[index]), justify="right" if right else "left", width=widths[index]
            )
        for row in table.rows:
            grid.add_row(*(Text(row[index]) for index in block))
        lines += [""] if number else []
        lines += _printed(grid, width)
    if table.note:
        lines += _printed(Text(f"({table.note})"), min(width, PROSE))
    return lines


def _printed(content: RenderableType, width: int) -> list[str]:
    """Return what rich prints at this width, without colours."""
    output = io.StringIO()
    Console(file=output, width=width, color_system=None, highlight=False, legacy_windows=False).print(content)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def _blocks(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield the columns of each block that fits into `width`; the first column is in every block."""
    block, used = [0], widths[0]
    for index in range(1, len(widths)):
        if len(block) > 1 and used + 2 + widths[index] > width:
            yield block
            block, used = [0], widths[0]
        block.append(index)
        used += 2 + widths[index]
    yield block


def markdown(comparison: Comparison, picture: str) -> str:
    """Return comparison.md; `picture` is the file name of the plot beside it."""
    lines = ["# Comparison of runs", ""]
    lines += [f"- {_escaped(item)}" for item in headline(comparison)]
    lines += ["", *(f"> {_escaped(item)}\n>" for item in all_warnings(comparison))]
    lines += ["", f"![Comparison]({picture.replace(' ', '%20')})", ""]
    lines += [
        "## Not equal between these runs",
        "",
        *(f"- {_escaped(i)}" for i in unfairness(comparison)),
        "",
    ]
    for table in [*main_tables(comparison), *further_tables(comparison)]:
        lines += [f"## {_escaped(table.title)}", "", *_markdown_table(table), ""]
    lines += [
        "## How the figures were made",
        "",
        *(f"- {_escaped(item)}" for item in methods(comparison)),
        "",
    ]
    return "\n".join(lines)


def _markdown_table(table: Table) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(_escaped(cell).replace(chr(10), '<br>') for cell in cells)} |"

    align = [
        "---" if index == 0 or not is_number_column(table, index) else "---:"
        for index in range(len(table.header))
    ]
    lines = [row(table.header), f"|{'|'.join(align)}|", *map(row, table.rows)]
    return [*lines, *(["", f"*{_escaped(table.note)}*"] if table.note else [])]


def _escaped(text: str) -> str:
    """Escape text so that Markdown shows it unchanged."""
    for sign in "\\|*_<>`#":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return text
